/* pool and weight_grad, which read rows; see rows.py. */

#include <stdlib.h>

#include "call.h"
#include "lanes.h"
#include "lookups.h"
#include "pages.h"

enum {
  ROWS_AHEAD = 16,           /* entries between prefetching and reading a row */
  BAGS_PER_TASK = 32,
  ENTRIES_PER_TASK = 2048,
  FLOATS_FOR_HELP = 1 << 15, /* one thread is faster for less than this */
};

typedef struct {
  Lookups lookups;
  const void *table;
  int64_t dim;
  int64_t row_bytes;
  const float *grads;
  float *out;
} Reading;

RECSYS_INLINE const void *row_at(const Reading *r, int64_t row) {
  return (const char *)r->table + row * r->row_bytes;
}

/* Prefetches the row that is read ROWS_AHEAD entries after `i`. */
RECSYS_INLINE void prefetch_ahead(const Reading *r, int64_t i) {
  i += ROWS_AHEAD;
  if (i < r->lookups.n && has_row(&r->lookups, i)) {
    prefetch(row_at(r, r->lookups.rows[i]), r->row_bytes, NEAR_TO_READ);
  }
}

static int workers_for(XLA_FFI_CallFrame *frame, const Reading *r) {
  return r->lookups.n * r->dim < FLOATS_FOR_HELP ? 1 : recsys_workers(frame);
}

/* ---- pool ---- */

/* Sums columns c … c + n_lanes * LANES of entries i … end into `out`. `n_lanes` and
   `is_half` are constants: the sums stay in registers. */
RECSYS_INLINE void pool_columns(const Reading *r, int64_t i, int64_t end, float *out, int64_t c,
                                int n_lanes, int is_half) {
  Lanes sums[8] = {{0}};
  for (; i < end; i++) {
    if (c == 0) prefetch_ahead(r, i);
    if (!has_row(&r->lookups, i)) continue;
    const void *row = row_at(r, r->lookups.rows[i]);
    Lanes weight = weight_of(&r->lookups, i) - (Lanes){0};
#pragma GCC unroll 8
    for (int k = 0; k < n_lanes; k++) sums[k] += weight * lanes(row, is_half, c + k * LANES);
  }
#pragma GCC unroll 8
  for (int k = 0; k < n_lanes; k++) put_lanes(out, c + k * LANES, sums[k]);
}

/* The same for columns c … dim, fewer than LANES. */
RECSYS_INLINE void pool_rest(const Reading *r, int64_t i, int64_t end, float *out, int64_t c,
                             int is_half) {
  for (int64_t k = c; k < r->dim; k++) out[k] = 0;
  for (; i < end; i++) {
    if (c == 0) prefetch_ahead(r, i);
    if (!has_row(&r->lookups, i)) continue;
    const void *row = row_at(r, r->lookups.rows[i]);
    float weight = weight_of(&r->lookups, i);
    for (int64_t k = c; k < r->dim; k++) out[k] += weight * element(row, is_half, k);
  }
}

RECSYS_INLINE void pool_bag(const Reading *r, int64_t i, int64_t end, float *out, int is_half) {
  int64_t c = 0, dim = r->dim;
  for (; c + 8 * LANES <= dim; c += 8 * LANES) pool_columns(r, i, end, out, c, 8, is_half);
  for (; c + 4 * LANES <= dim; c += 4 * LANES) pool_columns(r, i, end, out, c, 4, is_half);
  for (; c + LANES <= dim; c += LANES) pool_columns(r, i, end, out, c, 1, is_half);
  if (c < dim) pool_rest(r, i, end, out, c, is_half);
}

/* Returns the first entry whose bag is `bag` or later; bags don't decrease. */
static int64_t first_of(const Lookups *l, int64_t bag) {
  if (l->bag == NULL) return bag * l->per_bag < l->n ? bag * l->per_bag : l->n;
  int64_t low = 0, high = l->n;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (l->bag[middle] < bag) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

RECSYS_INLINE void pool_bags(const Reading *r, int64_t task, int is_half) {
  const Lookups *l = &r->lookups;
  int64_t bag = task * BAGS_PER_TASK, last = bag + BAGS_PER_TASK;
  if (last > l->n_bags) last = l->n_bags;
  int64_t i = first_of(l, bag);
  for (; bag < last; bag++) {
    int64_t end = i;
    if (l->bag == NULL) {
      end = first_of(l, bag + 1);
    } else {
      while (end < l->n && l->bag[end] == bag) end++;
    }
    pool_bag(r, i, end, r->out + bag * r->dim, is_half);
    i = end;
  }
}

static void pool_floats(void *context, int64_t task, int worker) {
  (void)worker;
  pool_bags(context, task, 0);
}

static void pool_halves(void *context, int64_t task, int worker) {
  (void)worker;
  pool_bags(context, task, 1);
}

static int is_ordered(const Lookups *l) {
  if (l->bag == NULL) return 1;
  int ordered = 1;
  for (int64_t i = 1; i < l->n; i++) ordered &= l->bag[i - 1] <= l->bag[i];
  return ordered;
}

/* For bags in any order: slow, with the same sums in the same order. */
static void pool_unordered(const Reading *r, int is_half) {
  const Lookups *l = &r->lookups;
  memset(r->out, 0, (size_t)(l->n_bags * r->dim) * sizeof(float));
  for (int64_t i = 0; i < l->n; i++) {
    if (!has_row(l, i) || !has_bag(l, i)) continue;
    const void *row = row_at(r, l->rows[i]);
    float *out = r->out + bag_of(l, i) * r->dim, weight = weight_of(l, i);
    for (int64_t k = 0; k < r->dim; k++) out[k] += weight * element(row, is_half, k);
  }
}

static Reading reading_of(XLA_FFI_CallFrame *frame, int64_t n_bags) {
  const XLA_FFI_Buffer *table = recsys_arg(frame, 0);
  int64_t dim = recsys_dim(table, 1);
  return (Reading){
      .lookups = lookups_of(frame, 1, recsys_dim(table, 0), n_bags),
      .table = table->data,
      .dim = dim,
      .row_bytes = dim * (table->dtype == XLA_FFI_DataType_BF16 ? 2 : 4),
      .out = recsys_ret(frame, 0)->data,
  };
}

RECSYS_HANDLER(pool) {
  XLA_FFI_Error *error = recsys_check(frame, 4, 1);
  if (error != NULL) return error;
  const XLA_FFI_Buffer *table = recsys_arg(frame, 0), *out = recsys_ret(frame, 0);
  const RecsysArray arrays[] = {
      {"the table", table, recsys_table_type(table), 2, {RECSYS_ANY, RECSYS_ANY}},
      {"the result", out, XLA_FFI_DataType_F32, 2, {RECSYS_ANY, recsys_dim(table, 1)}}};
  error = recsys_expect(frame, arrays, 2);
  if (error == NULL) error = lookups_expect(frame, 1, recsys_dim(out, 0));
  if (error != NULL) return error;
  Reading r = reading_of(frame, recsys_dim(out, 0));
  int is_half = table->dtype == XLA_FFI_DataType_BF16;
  recsys_ask_for_huge_pages(r.table, r.lookups.n_rows * r.row_bytes);
  if (!is_ordered(&r.lookups)) {
    pool_unordered(&r, is_half);
    return NULL;
  }
  int64_t n_tasks = (r.lookups.n_bags + BAGS_PER_TASK - 1) / BAGS_PER_TASK;
  RecsysPhase phase = {n_tasks, is_half ? pool_halves : pool_floats};
  recsys_run(frame, workers_for(frame, &r), &phase, 1, &r);
  return NULL;
}

/* ---- weight_grad ---- */

RECSYS_INLINE void weight_grads(const Reading *r, int64_t task, int is_half) {
  const Lookups *l = &r->lookups;
  int64_t i = task * ENTRIES_PER_TASK, end = i + ENTRIES_PER_TASK;
  if (end > l->n) end = l->n;
  for (; i < end; i++) {
    prefetch_ahead(r, i);
    r->out[i] = 0;
    if (!has_row(l, i) || !has_bag(l, i)) continue;
    const float *grads = r->grads + bag_of(l, i) * r->dim;
    r->out[i] = inner_product(row_at(r, l->rows[i]), is_half, grads, r->dim);
  }
}

static void weight_grads_of_floats(void *context, int64_t task, int worker) {
  (void)worker;
  weight_grads(context, task, 0);
}

static void weight_grads_of_halves(void *context, int64_t task, int worker) {
  (void)worker;
  weight_grads(context, task, 1);
}

RECSYS_HANDLER(weight_grad) {
  XLA_FFI_Error *error = recsys_check(frame, 5, 1);
  if (error != NULL) return error;
  const XLA_FFI_Buffer *table = recsys_arg(frame, 0), *rows = recsys_arg(frame, 1),
                       *grads = recsys_arg(frame, 4), *out = recsys_ret(frame, 0);
  const RecsysArray arrays[] = {
      {"the table", table, recsys_table_type(table), 2, {RECSYS_ANY, RECSYS_ANY}},
      {"gradients", grads, XLA_FFI_DataType_F32, 2, {RECSYS_ANY, recsys_dim(table, 1)}},
      {"the result", out, XLA_FFI_DataType_F32, 1, {recsys_dim(rows, 0)}}};
  error = recsys_expect(frame, arrays, 3);
  if (error == NULL) error = lookups_expect(frame, 1, recsys_dim(grads, 0));
  if (error != NULL) return error;
  Reading r = reading_of(frame, recsys_dim(grads, 0));
  r.grads = grads->data;
  if (r.lookups.n_bags == 0) memset(r.out, 0, (size_t)recsys_dim(out, 0) * sizeof(float));
  int is_half = table->dtype == XLA_FFI_DataType_BF16;
  int64_t n_tasks = (r.lookups.n + ENTRIES_PER_TASK - 1) / ENTRIES_PER_TASK;
  RecsysPhase phase = {n_tasks, is_half ? weight_grads_of_halves : weight_grads_of_floats};
  recsys_run(frame, workers_for(frame, &r), &phase, 1, &r);
  return NULL;
}

/* ---- Self-check ---- */

RECSYS_SELF_CHECK(rows) {
  const float table[3][2] = {{1, 2}, {3, 4}, {5, 6}};
  const int32_t rows[4] = {2, 0, 7, 1}, bag[4] = {0, 0, 1, 1};
  const float weight[4] = {1, 2, 3, 0.5f};
  float out[2][2];
  Reading r = {.lookups = {rows, bag, weight, 4, 3, 2, 1},
               .table = table,
               .dim = 2,
               .row_bytes = 8,
               .out = &out[0][0]};
  RecsysPhase phase = {1, pool_floats};
  recsys_run(NULL, 1, &phase, 1, &r);
  return out[0][0] != 7 || out[0][1] != 10 || out[1][0] != 1.5f || out[1][1] != 2;
}
