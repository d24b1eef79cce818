/* Counting, scattering and grouping of entries; see partition.h. */

#include "partition.h"

#include <string.h>

enum {
  ENTRIES_PER_BUCKET = 256,
  MAX_BITS = 12,
  ENTRIES_PER_CHUNK = 8192,
  MAX_CHUNKS = 32,
};

/* Multiplicative hashing (Knuth, TAOCP 6.4): a bijection whose upper bits are mixed. */
RECSYS_INLINE uint32_t hash(int32_t row) { return (uint32_t)row * 0x9E3779B1u; }

RECSYS_INLINE uint32_t bucket_of(const Partition *p, int32_t row) {
  return (uint32_t)(((uint64_t)hash(row) << p->bits) >> 32);
}

static int64_t chunk_start(const Partition *p, int64_t chunk) {
  return p->lookups.n * chunk / p->n_chunks;
}

static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

int partition_plan(Partition *p, Lookups lookups, int n_workers) {
  memset(p, 0, sizeof *p);
  p->lookups = lookups;
  p->n_workers = n_workers;
  int64_t n = lookups.n;
  while (p->bits < MAX_BITS && n >> p->bits > ENTRIES_PER_BUCKET) p->bits++;
  p->n_chunks = n / ENTRIES_PER_CHUNK;
  if (p->n_chunks < 1) p->n_chunks = 1;
  if (p->n_chunks > MAX_CHUNKS) p->n_chunks = MAX_CHUNKS;
  size_t buckets = (size_t)n_buckets(p);
  size_t offsets = rounded(buckets * (size_t)p->n_chunks * sizeof *p->offsets);
  size_t starts = rounded((buckets + 1) * sizeof *p->starts);
  char *memory = recsys_scratch_take(offsets + starts + (size_t)n * sizeof *p->entries);
  if (memory == NULL) return 0;
  p->memory = memory;
  p->offsets = (uint32_t *)memory;
  p->starts = (uint32_t *)(memory + offsets);
  p->entries = (Entry *)(memory + offsets + starts);
  return 1;
}

void partition_free(Partition *p) {
  recsys_scratch_give(p->memory);
  recsys_scratch_give(p->grouper_memory);
}

static void count(void *context, int64_t chunk, int worker) {
  (void)worker;
  Partition *p = context;
  const Lookups *l = &p->lookups;
  uint32_t *counts = p->offsets + chunk * n_buckets(p);
  memset(counts, 0, (size_t)n_buckets(p) * sizeof *counts);
  for (int64_t i = chunk_start(p, chunk); i < chunk_start(p, chunk + 1); i++) {
    if (has_row(l, i) && has_bag(l, i)) counts[bucket_of(p, l->rows[i])]++;
  }
}

static size_t slots_for(uint32_t entries) {
  size_t slots = 16;
  while (slots < 2 * (size_t)entries) slots *= 2;
  return slots;
}

static void make_groupers(Partition *p, uint32_t largest) {
  size_t slots = slots_for(largest) * sizeof(uint64_t);
  size_t groups = rounded(largest * sizeof(Group)), next = rounded(largest * sizeof(uint32_t));
  size_t each = slots + groups + next;
  char *memory = recsys_scratch_take(each * (size_t)p->n_workers);
  p->grouper_memory = memory;
  p->out_of_memory = memory == NULL;
  if (memory == NULL) return;
  for (int w = 0; w < p->n_workers; w++, memory += each) {
    p->groupers[w] = (Grouper){(uint64_t *)memory, (Group *)(memory + slots),
                               (uint32_t *)(memory + slots + groups)};
  }
}

/* Turns counts into the offsets at which each chunk writes its entries of each bucket. */
static void lay_out_buckets(void *context, int64_t task, int worker) {
  (void)task, (void)worker;
  Partition *p = context;
  uint32_t at = 0, largest = 0;
  for (int64_t b = 0; b < n_buckets(p); b++) {
    p->starts[b] = at;
    for (int64_t c = 0; c < p->n_chunks; c++) {
      uint32_t *offset = &p->offsets[c * n_buckets(p) + b];
      uint32_t n = *offset;
      *offset = at;
      at += n;
    }
    if (at - p->starts[b] > largest) largest = at - p->starts[b];
  }
  p->starts[n_buckets(p)] = at;
  make_groupers(p, largest);
}

static void scatter(void *context, int64_t chunk, int worker) {
  (void)worker;
  Partition *p = context;
  const Lookups *l = &p->lookups;
  uint32_t *offsets = p->offsets + chunk * n_buckets(p);
  for (int64_t i = chunk_start(p, chunk); i < chunk_start(p, chunk + 1); i++) {
    if (!has_row(l, i) || !has_bag(l, i)) continue;
    p->entries[offsets[bucket_of(p, l->rows[i])]++] =
        (Entry){l->rows[i], (int32_t)bag_of(l, i), weight_of(l, i)};
  }
}

void partition_phases(const Partition *p, RecsysPhase *phases) {
  phases[0] = (RecsysPhase){p->n_chunks, count};
  phases[1] = (RecsysPhase){1, lay_out_buckets};
  phases[2] = (RecsysPhase){p->n_chunks, scatter};
}

/* Appends entry `k` to the chain of its row. */
RECSYS_INLINE int64_t append(Grouper *g, int32_t row, uint32_t k, uint32_t at, uint32_t mask,
                             int64_t n_groups) {
  uint64_t slot;
  while ((slot = g->slots[at]) != 0 && (int32_t)(slot >> 32) != row) at = (at + 1) & mask;
  if (slot == 0) {
    g->slots[at] = (uint64_t)(uint32_t)row << 32 | (uint64_t)(n_groups + 1);
    g->groups[n_groups] = (Group){row, k, k};
    return n_groups + 1;
  }
  Group *group = &g->groups[(uint32_t)slot - 1];
  g->next[group->last] = k;
  group->last = k;
  return n_groups;
}

Bucket partition_bucket(Partition *p, int64_t bucket, int worker) {
  const Entry *entries = p->entries + p->starts[bucket];
  uint32_t n = p->starts[bucket + 1] - p->starts[bucket];
  Grouper *g = &p->groupers[worker];
  size_t slots = slots_for(n);
  int shift = __builtin_clz((uint32_t)slots - 1);
  memset(g->slots, 0, slots * sizeof *g->slots);
  int64_t n_groups = 0;
  for (uint32_t k = 0; k < n; k++) {
    uint32_t at = (hash(entries[k].row) << p->bits) >> shift;
    n_groups = append(g, entries[k].row, k, at, (uint32_t)slots - 1, n_groups);
  }
  return (Bucket){entries, g->groups, g->next, n_groups};
}
