/* Entries of a lookup list, brought together by row without sorting. */

#ifndef RECSYS_PARTITION_H_
#define RECSYS_PARTITION_H_

#include "call.h"
#include "lookups.h"

/* An entry that isn't skipped. */
typedef struct {
  int32_t row;
  int32_t bag;
  float weight;
} Entry;

/* A distinct row of a bucket: the chain of its entries, in the order of the list. */
typedef struct {
  int32_t row;
  uint32_t first;
  uint32_t last;
} Group;

/* What one worker needs to group a bucket; the arrays hold the largest bucket. */
typedef struct {
  uint64_t *slots; /* hash table: row << 32 | group + 1, or 0 */
  Group *groups;
  uint32_t *next;  /* of each entry of the bucket: the one after it in its chain */
} Grouper;

/* The entries, cut by a hash of the row into buckets that fit the first cache. All
   entries of a row are in one bucket, in the order of the list: what is computed from
   a bucket is independent of threads. */
typedef struct {
  Lookups lookups;
  int bits; /* there are 1 << bits buckets */
  int64_t n_chunks;
  int n_workers;
  uint32_t *offsets; /* [n_chunks][n_buckets]: where a chunk's next entry goes */
  uint32_t *starts;  /* [n_buckets + 1] */
  Entry *entries;    /* [n] */
  void *memory;
  void *grouper_memory;
  Grouper groupers[RECSYS_MAX_WORKERS];
  int out_of_memory;
} Partition;

RECSYS_INLINE int64_t n_buckets(const Partition *p) { return (int64_t)1 << p->bits; }

/* Plans the partition of `lookups`; returns whether there was memory for it. */
int partition_plan(Partition *p, Lookups lookups, int n_workers);
void partition_free(Partition *p);

/* The phases that fill it. The context must begin with the Partition. */
enum { PARTITION_PHASES = 3 };
void partition_phases(const Partition *p, RecsysPhase *phases);

/* Groups the entries `bucket` for `worker`; returns the number of groups, which are in
   p->groupers[worker] in the order of their first entry. `found` is called for each
   new row. */
typedef struct {
  const Entry *entries;
  const Group *groups;
  const uint32_t *next;
  int64_t n_groups;
} Bucket;

Bucket partition_bucket(Partition *p, int64_t bucket, int worker);

#endif  // RECSYS_PARTITION_H_
