/* update and sum_squares, which visit each unique row once; see rows.py. */

#include <stdlib.h>

#include "call.h"
#include "lanes.h"
#include "lookups.h"
#include "optimizers.h"
#include "pages.h"
#include "partition.h"

enum {
  ROWS_FAR = 16,             /* rows between prefetching and changing one */
  ROWS_NEAR = 4,
  FLOATS_FOR_HELP = 1 << 14, /* one thread is faster for fewer gradients */
};

/* The partition comes first: its phases get the same context. */
typedef struct {
  Partition partition;
  const float *grads;
  int64_t dim;
  char *table;
  int64_t row_bytes;
  float *slots[2];
  int64_t slot_dim; /* 1 or dim */
  Scalars scalars;
  uint32_t row_offset;
  uint32_t *columns; /* [dim]: hash of each column for stochastic rounding */
  float *rows;       /* [workers][2][dim]: a gradient, and a row in float32 */
  int64_t stride;    /* between rows of `rows`, in floats */
  double *sums;      /* [buckets] */
  float *out;
} Update;

/* ---- The gradient of a row ---- */

/* Sums columns c … c + n_lanes * LANES of the gradients in `group`'s chain. */
RECSYS_INLINE void sum_columns(const Update *u, const Bucket *b, const Group *group, float *out,
                               int64_t c, int n_lanes, float scale) {
  Lanes sums[8] = {{0}};
  for (uint32_t k = group->first;; k = b->next[k]) {
    const Entry *entry = &b->entries[k];
    const float *grads = u->grads + entry->bag * u->dim;
    Lanes weight = entry->weight - (Lanes){0};
#pragma GCC unroll 8
    for (int j = 0; j < n_lanes; j++) sums[j] += weight * lanes(grads, 0, c + j * LANES);
    if (k == group->last) break;
  }
#pragma GCC unroll 8
  for (int j = 0; j < n_lanes; j++) put_lanes(out, c + j * LANES, sums[j] * scale);
}

RECSYS_INLINE void sum_rest(const Update *u, const Bucket *b, const Group *group, float *out,
                            int64_t c, float scale) {
  for (int64_t i = c; i < u->dim; i++) out[i] = 0;
  for (uint32_t k = group->first;; k = b->next[k]) {
    const Entry *entry = &b->entries[k];
    const float *grads = u->grads + entry->bag * u->dim;
    for (int64_t i = c; i < u->dim; i++) out[i] += entry->weight * grads[i];
    if (k == group->last) break;
  }
  for (int64_t i = c; i < u->dim; i++) out[i] *= scale;
}

/* Writes scale * the sum of the weighted gradients of `group` to `out` [dim]. */
RECSYS_INLINE void sum_group(const Update *u, const Bucket *b, const Group *group, float *out,
                             float scale) {
  int64_t c = 0, dim = u->dim;
  for (; c + 8 * LANES <= dim; c += 8 * LANES) sum_columns(u, b, group, out, c, 8, scale);
  for (; c + 4 * LANES <= dim; c += 4 * LANES) sum_columns(u, b, group, out, c, 4, scale);
  for (; c + LANES <= dim; c += LANES) sum_columns(u, b, group, out, c, 1, scale);
  if (c < dim) sum_rest(u, b, group, out, c, scale);
}

static float *row_of_worker(const Update *u, int worker, int which) {
  return u->rows + (2 * worker + which) * u->stride;
}

/* ---- update ---- */

RECSYS_INLINE void prefetch_group(const Update *u, const Bucket *b, int64_t i, int n_slots, Prefetch how) {
  if (i >= b->n_groups) return;
  const Group *group = &b->groups[i];
  prefetch(u->table + group->row * u->row_bytes, u->row_bytes, how);
  for (int s = 0; s < n_slots; s++) {
    prefetch(u->slots[s] + group->row * u->slot_dim, u->slot_dim * 4, how);
  }
  if (how == FAR) return;
  prefetch(u->grads + b->entries[group->first].bag * u->dim, u->dim * 4, NEAR_TO_READ);
}

static int n_slots_of(Optimizer optimizer) {
  return optimizer == SGD ? 0 : optimizer == ADAGRAD || optimizer == ROW_WISE_ADAGRAD ? 1 : 2;
}

RECSYS_INLINE void update_row(const Update *u, int64_t row, float *g, float *buffer,
                              Optimizer optimizer, int is_half) {
  void *at = u->table + row * u->row_bytes;
  float *w = is_half ? buffer : at;
  for (int64_t i = 0; is_half && i < u->dim; i++) w[i] = element(at, 1, i);
  float *slot_0 = u->slots[0] + row * u->slot_dim, *slot_1 = u->slots[1] + row * u->slot_dim;
  take_step(optimizer, &u->scalars, w, slot_0, slot_1, g, u->dim);
  if (is_half) round_row(at, w, u->columns, row_key(u->row_offset + (uint32_t)row), u->dim);
}

RECSYS_INLINE void update_bucket(Update *u, int64_t bucket, int worker, Optimizer optimizer,
                                 int is_half) {
  if (u->partition.out_of_memory) return;
  Bucket b = partition_bucket(&u->partition, bucket, worker);
  float *g = row_of_worker(u, worker, 0), *buffer = row_of_worker(u, worker, 1);
  int n_slots = n_slots_of(optimizer);
  for (int64_t i = 0; i < ROWS_FAR; i++) prefetch_group(u, &b, i, n_slots, FAR);
  for (int64_t i = 0; i < b.n_groups; i++) {
    prefetch_group(u, &b, i + ROWS_FAR, n_slots, FAR);
    prefetch_group(u, &b, i + ROWS_NEAR, n_slots, NEAR_TO_WRITE);
    sum_group(u, &b, &b.groups[i], g, u->scalars.scale);
    update_row(u, b.groups[i].row, g, buffer, optimizer, is_half);
  }
}

/* One function for each optimizer and dtype of the table. */
#define UPDATE_BUCKET(name, optimizer)                                  \
  static void name##_floats(void *u, int64_t bucket, int worker) {      \
    update_bucket(u, bucket, worker, optimizer, 0);                     \
  }                                                                     \
  static void name##_halves(void *u, int64_t bucket, int worker) {      \
    update_bucket(u, bucket, worker, optimizer, 1);                     \
  }
UPDATE_BUCKET(update_sgd, SGD)
UPDATE_BUCKET(update_adagrad, ADAGRAD)
UPDATE_BUCKET(update_row_wise_adagrad, ROW_WISE_ADAGRAD)
UPDATE_BUCKET(update_lazy_adam, LAZY_ADAM)
UPDATE_BUCKET(update_ftrl, FTRL)

static void (*const UPDATES[N_OPTIMIZERS][2])(void *, int64_t, int) = {
    {update_sgd_floats, update_sgd_halves},
    {update_adagrad_floats, update_adagrad_halves},
    {update_row_wise_adagrad_floats, update_row_wise_adagrad_halves},
    {update_lazy_adam_floats, update_lazy_adam_halves},
    {update_ftrl_floats, update_ftrl_halves},
};

static Scalars scalars_of(const XLA_FFI_CallFrame *frame, const float *scalars) {
  return (Scalars){
      .rate = scalars[0],
      .scale = scalars[1],
      .step_size = scalars[2],
      .weight_decay = (float)recsys_attr(frame, "weight_decay", 0),
      .clipnorm = (float)recsys_attr(frame, "clipnorm", 0),
      .epsilon = (float)recsys_attr(frame, "epsilon", 1e-7),
      .gain_1 = (float)(1 - recsys_attr(frame, "beta_1", 0.9)),
      .gain_2 = (float)(1 - recsys_attr(frame, "beta_2", 0.999)),
      .power = (float)-recsys_attr(frame, "learning_rate_power", -0.5),
      .l1 = (float)recsys_attr(frame, "l1_regularization_strength", 0),
      .l2 = (float)recsys_attr(frame, "l2_regularization_strength", 0),
      .shrinkage = (float)recsys_attr(frame, "l2_shrinkage_regularization_strength", 0),
      .beta = (float)recsys_attr(frame, "beta", 0),
  };
}

/* Plans the partition, and allocates the rows of `n_workers` and `extra` bytes. Returns the
   extra bytes, or NULL if there is no memory. */
static void *prepare(Update *u, Lookups lookups, int n_workers, size_t extra) {
  if (!partition_plan(&u->partition, lookups, n_workers)) return NULL;
  u->stride = (u->dim + LINE / 4 - 1) / (LINE / 4) * (LINE / 4);
  size_t rows = (size_t)u->stride * 2 * (size_t)n_workers * sizeof(float);
  u->rows = recsys_scratch_take(rows + extra);
  return u->rows == NULL ? NULL : (char *)u->rows + rows;
}

static void finish(Update *u) {
  recsys_scratch_give(u->rows);
  partition_free(&u->partition);
}

static int workers_for(XLA_FFI_CallFrame *frame, const Lookups *l, int64_t dim) {
  return l->n * dim < FLOATS_FOR_HELP ? 1 : recsys_workers(frame);
}

static const char *NO_MEMORY = "recsys: there is no memory for the update of a table";

/* Runs the phases of the partition, `bucket` for each bucket, and `last` if not NULL. */
static int run(XLA_FFI_CallFrame *frame, Update *u, void (*bucket)(void *, int64_t, int),
               void (*last)(void *, int64_t, int)) {
  RecsysPhase phases[PARTITION_PHASES + 2];
  partition_phases(&u->partition, phases);
  phases[PARTITION_PHASES] = (RecsysPhase){n_buckets(&u->partition), bucket};
  phases[PARTITION_PHASES + 1] = (RecsysPhase){1, last};
  recsys_run(frame, u->partition.n_workers, phases, PARTITION_PHASES + (last ? 2 : 1), u);
  return !u->partition.out_of_memory;
}

/* Results normally share the memory of the arguments; else copies. */
static void copy_if_apart(const XLA_FFI_Buffer *from, const XLA_FFI_Buffer *to, int64_t row_bytes) {
  if (from->data != to->data) {
    memcpy(to->data, from->data, (size_t)(recsys_dim(from, 0) * row_bytes));
  }
}

/* Returns an error if the arrays of an update are invalid, else NULL. */
static XLA_FFI_Error *expect_update(XLA_FFI_CallFrame *frame, Optimizer optimizer) {
  int n_slots = n_slots_of(optimizer), n = 0;
  const XLA_FFI_Buffer *table = recsys_arg(frame, 0), *grads = recsys_arg(frame, n_slots + 4);
  int64_t n_rows = recsys_dim(table, 0), dim = recsys_dim(table, 1);
  int64_t slot_dim = optimizer == ROW_WISE_ADAGRAD ? 1 : dim;
  const XLA_FFI_DataType type = recsys_table_type(table), number = XLA_FFI_DataType_F32;
  RecsysArray arrays[9];
  arrays[n++] = (RecsysArray){"the table", table, type, 2, {RECSYS_ANY, RECSYS_ANY}};
  arrays[n++] = (RecsysArray){"the new table", recsys_ret(frame, 0), type, 2, {n_rows, dim}};
  for (int s = 1; s <= n_slots; s++) {
    arrays[n++] = (RecsysArray){"a slot", recsys_arg(frame, s), number, 2, {n_rows, slot_dim}};
    arrays[n++] = (RecsysArray){"a new slot", recsys_ret(frame, s), number, 2, {n_rows, slot_dim}};
  }
  arrays[n++] = (RecsysArray){"gradients", grads, number, 2, {RECSYS_ANY, dim}};
  arrays[n++] = (RecsysArray){"scalars", recsys_arg(frame, n_slots + 5), number, 1, {4}};
  arrays[n++] =
      (RecsysArray){"rounding", recsys_arg(frame, n_slots + 6), XLA_FFI_DataType_S32, 1, {2}};
  XLA_FFI_Error *error = recsys_expect(frame, arrays, n);
  return error != NULL ? error : lookups_expect(frame, 1 + n_slots, recsys_dim(grads, 0));
}

/* Arguments: table, slots…, rows, bag, weight, grads, scalars, rounding.
   Results: table, slots…, in place. */
RECSYS_HANDLER(update) {
  double number = recsys_attr(frame, "optimizer", -1);
  if (!(number >= 0 && number < N_OPTIMIZERS)) return recsys_fail(frame, "recsys: no such optimizer");
  int kind = (int)number, n_slots = n_slots_of((Optimizer)kind);
  XLA_FFI_Error *error = recsys_check(frame, 7 + n_slots, 1 + n_slots);
  if (error == NULL) error = expect_update(frame, (Optimizer)kind);
  if (error != NULL) return error;
  const XLA_FFI_Buffer *table = recsys_arg(frame, 0), *grads = recsys_arg(frame, n_slots + 4);
  int is_half = table->dtype == XLA_FFI_DataType_BF16;
  const uint32_t *rounding = recsys_arg(frame, n_slots + 6)->data;
  Update u = {
      .grads = grads->data,
      .dim = recsys_dim(table, 1),
      .table = recsys_ret(frame, 0)->data,
      .row_bytes = recsys_dim(table, 1) * (is_half ? 2 : 4),
      .slot_dim = n_slots > 0 ? recsys_dim(recsys_arg(frame, 1), 1) : 0,
      .scalars = scalars_of(frame, recsys_arg(frame, n_slots + 5)->data),
      .row_offset = rounding[1],
  };
  copy_if_apart(table, recsys_ret(frame, 0), u.row_bytes);
  for (int s = 0; s < n_slots; s++) {
    copy_if_apart(recsys_arg(frame, 1 + s), recsys_ret(frame, 1 + s), u.slot_dim * 4);
    u.slots[s] = recsys_ret(frame, 1 + s)->data;
  }
  Lookups lookups = lookups_of(frame, 1 + n_slots, recsys_dim(table, 0), recsys_dim(grads, 0));
  recsys_ask_for_huge_pages(u.table, lookups.n_rows * u.row_bytes);
  for (int s = 0; s < n_slots; s++) {
    recsys_ask_for_huge_pages(u.slots[s], lookups.n_rows * u.slot_dim * 4);
  }
  int n_workers = workers_for(frame, &lookups, u.dim);
  u.columns = prepare(&u, lookups, n_workers, (size_t)u.dim * sizeof *u.columns);
  int done = u.columns != NULL;
  if (done) {
    for (int64_t i = 0; i < u.dim; i++) u.columns[i] = column_key((uint32_t)i, rounding[0]);
    done = run(frame, &u, UPDATES[kind][is_half], NULL);
  }
  finish(&u);
  return done ? NULL : recsys_fail(frame, NO_MEMORY);
}

/* ---- sum_squares ---- */

static void square_bucket(void *context, int64_t bucket, int worker) {
  Update *u = context;
  if (u->partition.out_of_memory) return;
  Bucket b = partition_bucket(&u->partition, bucket, worker);
  float *g = row_of_worker(u, worker, 0);
  double sum = 0;
  for (int64_t i = 0; i < b.n_groups; i++) {
    sum_group(u, &b, &b.groups[i], g, 1.0f);
    sum += square_sum(g, u->dim);
  }
  u->sums[bucket] = sum;
}

static void add_up(void *context, int64_t task, int worker) {
  (void)task, (void)worker;
  Update *u = context;
  if (u->partition.out_of_memory) return;
  double sum = 0;
  for (int64_t b = 0; b < n_buckets(&u->partition); b++) sum += u->sums[b];
  *u->out = (float)sum;
}

RECSYS_HANDLER(sum_squares) {
  XLA_FFI_Error *error = recsys_check(frame, 4, 1);
  if (error != NULL) return error;
  const XLA_FFI_Buffer *grads = recsys_arg(frame, 3);
  const RecsysArray arrays[] = {
      {"gradients", grads, XLA_FFI_DataType_F32, 2, {RECSYS_ANY, RECSYS_ANY}},
      {"the result", recsys_ret(frame, 0), XLA_FFI_DataType_F32, 0, {0}}};
  error = recsys_expect(frame, arrays, 2);
  if (error == NULL) error = lookups_expect(frame, 0, recsys_dim(grads, 0));
  if (error != NULL) return error;
  double rows = recsys_attr(frame, "n_rows", 0);
  if (!(rows >= 0 && rows <= INT32_MAX)) return recsys_fail(frame, "recsys: too many rows");
  int64_t n_rows = (int64_t)rows;
  Update u = {
      .grads = grads->data, .dim = recsys_dim(grads, 1), .out = recsys_ret(frame, 0)->data};
  Lookups lookups = lookups_of(frame, 0, n_rows, recsys_dim(grads, 0));
  int n_workers = workers_for(frame, &lookups, u.dim);
  /* There are at most as many buckets as entries, and at least one. */
  u.sums = prepare(&u, lookups, n_workers, (size_t)(lookups.n + 1) * sizeof *u.sums);
  int done = u.sums != NULL && run(frame, &u, square_bucket, add_up);
  finish(&u);
  return done ? NULL : recsys_fail(frame, NO_MEMORY);
}

/* ---- Self-check ---- */

RECSYS_SELF_CHECK(update) {
  float table[3][2] = {{1, 2}, {3, 4}, {5, 6}};
  const int32_t rows[4] = {2, 0, 2, 3}, bag[4] = {0, 1, 1, 0};
  const float weight[4] = {1, 1, 2, 1}, grads[2][2] = {{1, 10}, {2, 20}};
  Update u = {.grads = &grads[0][0],
              .dim = 2,
              .table = (char *)table,
              .row_bytes = 8,
              .scalars = {.rate = 0.5f, .scale = 2}};
  Lookups lookups = {rows, bag, weight, 4, 3, 2, 1};
  int done = prepare(&u, lookups, 1, 0) != NULL && run(NULL, &u, update_sgd_floats, NULL);
  finish(&u);
  const float expected[3][2] = {{-1, -18}, {3, 4}, {0, -44}};
  return !done || memcmp(table, expected, sizeof table) != 0;
}
