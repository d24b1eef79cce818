/* Groups the entries of a lookup list by row, without sorting. */

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

/* A unique row of a bucket: the chain of its entries, in the order of the list. */
typedef struct {
  int32_t row;
  uint32_t first;
  uint32_t last;
} Group;

/* Memory of one worker to group a bucket, sized for the largest bucket. */
typedef struct {
  uint64_t *slots; /* hash table: row << 32 | group + 1, or 0 */
  Group *groups;
  uint32_t *next;  /* next entry in the chain of each entry of the bucket */
} Grouper;

/* The entries, split by a hash of the row into buckets that fit the first-level cache. All
   entries of a row are in one bucket, in the order of the list, so results of a bucket don't
   depend on threads. */
typedef struct {
  Lookups lookups;
  int bits; /* there are 1 << bits buckets */
  int64_t n_chunks;
  int n_workers;
  uint32_t *offsets; /* [n_chunks][n_buckets]: index of a chunk's next entry */
  uint32_t *starts;  /* [n_buckets + 1] */
  Entry *entries;    /* [n] */
  void *memory;
  void *grouper_memory;
  Grouper groupers[RECSYS_MAX_WORKERS];
  int out_of_memory;
} Partition;

RECSYS_INLINE int64_t n_buckets(const Partition *p) { return (int64_t)1 << p->bits; }

/* Plans the partition of `lookups`; returns 0 if there is no memory. */
int partition_plan(Partition *p, Lookups lookups, int n_workers);
void partition_free(Partition *p);

/* Phases that fill the partition. The context must begin with the Partition. */
enum { PARTITION_PHASES = 3 };
void partition_phases(const Partition *p, RecsysPhase *phases);

/* The groups of a bucket, in the order of their first entries. */
typedef struct {
  const Entry *entries;
  const Group *groups;
  const uint32_t *next;
  int64_t n_groups;
} Bucket;

/* Groups the entries of `bucket` in the memory of `worker`. */
Bucket partition_bucket(Partition *p, int64_t bucket, int worker);

#endif  // RECSYS_PARTITION_H_
