/* The sampled softmax and its gradients in one sweep, without the queries × candidates
   matrix. For query i with weight w_i, and all candidates j:

       logit_ij = query_i · candidate_j / temperature - log_q_j
       loss_i   = log sum_j exp(logit_ij) - positive_scale · logit_i,positive

   The positive of query i is candidate first + i. Its negatives are the first positions of all
   other items, except its known positives. The sum is over the positive and the negatives. The
   gradients are of sum_i w_i loss_i.

   Each item has one column (softmax_columns.h), at its first position. A positive at a later
   position is apart: its logit is one inner product, and its item's column is left out of its
   row.

   ROWS queries are computed at a time: their logits are a block that stays in the L2 cache, in
   panels of COLS columns; the exponentials replace them; then each panel adds its part of both
   gradients. Queries are assigned to lanes by their number, each lane sums its own candidate
   gradients in the order of its queries, and lanes are added in order: results don't depend on
   the number of threads. */

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "lanes.h"
#include "softmax_columns.h"
#include "softmax_products.h"

/* ---- The sweep ---- */

enum { MIN_LANES = 4, MAX_LANES = 16, LANE_QUERIES = 256, LANES_BYTES = 1 << 28 };
enum { PREPARE_PANELS = 8 };

/* Queries [tile, end) · TILE, one block after the other. */
typedef struct {
  int64_t next_block, n_blocks, tile, n_tiles;
  int busy;
} Lane;

typedef struct {
  int64_t n_queries, n_candidates, n_known, dim, first;
  const float *query, *candidate, *log_q, *weight;
  const int32_t *known; /* [n_queries, n_known]: items, 0 for none */
  float scale, positive_scale; /* scale: 1 / temperature */
  float *loss, *d_query, *d_candidate, *d_log_q; /* NULL if not requested */

  Columns items;
  int64_t width, capacity;  /* capacity: most columns, if all candidates differ */
  int64_t n_panels, n_lanes;
  float *panels;            /* [n_panels, width, COLS]: columns' candidates, transposed */
  const float *rows;        /* [n_columns, width]: columns' candidates, not transposed */
  float *copies;            /* memory for `rows`; NULL if they are the candidates */
  float *bias;              /* [n_panels * COLS]: -log_q, then -infinity */
  float *lane_rows;         /* [n_lanes, capacity, width] */
  float *lane_log_q;        /* [n_lanes, capacity] */
  float *blocks;            /* [workers, block_floats] */
  int64_t block_floats;
  pthread_mutex_t lock;
  Lane lanes[MAX_LANES];
} Sweep;

/* Working memory of one thread. */
typedef struct {
  float *logits;                /* [n_panels, ROWS, COLS] */
  float *query, *query_times_p; /* [ROWS, width]: query / temperature; times `share` too */
  float *d_query;               /* [ROWS, width] */
  float *most, *sum;            /* [ROWS, LANES] */
  float positive[ROWS], top[ROWS], share[ROWS]; /* share: w / sum */
  int is_apart[ROWS];           /* the positive is no column */
  float slope[ROWS];            /* of a positive that is apart */
} Block;

static int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static float greater(float a, float b) { return b > a ? b : a; }

/* ---- Before: columns in panels ---- */

static void fill_panel(Sweep *s, int64_t p) {
  const int64_t start = p * COLS, n = least(COLS, s->items.n_columns - start);
  float *panel = s->panels + p * s->width * COLS;
  const float *from[COLS];
  for (int64_t c = 0; c < COLS; c++) {
    const int64_t first = c < n ? s->items.first[start + c] : 0;
    from[c] = s->candidate + first * s->dim;
    s->bias[start + c] = c < n ? -s->log_q[first] : -INFINITY;
  }
  for (int64_t d = 0; d < s->width; d++) {
    for (int64_t c = 0; c < COLS; c++) {
      panel[d * COLS + c] = d < s->dim && c < n ? from[c][d] : 0;
    }
  }
  for (int64_t c = 0; c < n && s->copies != NULL; c++) {
    float *row = s->copies + (start + c) * s->width;
    memset(row + s->dim, 0, (size_t)(s->width - s->dim) * sizeof *row);
    memcpy(row, from[c], (size_t)s->dim * sizeof *row);
  }
}

/* Candidates without a column have a gradient only from their own query. */
static void clear_copies(Sweep *s, int64_t start, int64_t end) {
  for (int64_t j = start; j < end; j++) {
    if (is_column(&s->items, j)) continue;
    memset(s->d_candidate + j * s->dim, 0, (size_t)s->dim * sizeof *s->d_candidate);
    if (s->d_log_q != NULL) s->d_log_q[j] = 0;
  }
}

static void prepare(void *context, int64_t task, int worker) {
  (void)worker;
  Sweep *s = context;
  const int64_t start = task * PREPARE_PANELS, end = start + PREPARE_PANELS;
  for (int64_t p = start; p < least(end, s->n_panels); p++) fill_panel(s, p);
  if (s->d_query != NULL) clear_copies(s, start * COLS, least(end * COLS, s->n_candidates));
}

/* ---- One block: queries start … start + n; `height` is n rounded up to TILE ---- */

static void take_queries(const Sweep *s, Block *b, int64_t start, int64_t n, int64_t height) {
  memset(b->query, 0, (size_t)(height * s->width) * sizeof(float));
  for (int64_t i = 0; i < n; i++) {
    const float *from = s->query + (start + i) * s->dim;
    float *restrict to = b->query + i * s->width;
    for (int64_t d = 0; d < s->dim; d++) to[d] = from[d] * s->scale;
  }
  for (int64_t i = 0; i < height * LANES; i++) {
    b->most[i] = -INFINITY;
    b->sum[i] = 0;
  }
}

/* The logits of `rows` queries and a panel's next LOGIT_VECTORS vectors. */
RECSYS_INLINE void logit_tile(const float *query, int64_t width, const float *panel,
                              const float *bias, float *logits, float *most) {
  enum { HEIGHT = SUMS / LOGIT_VECTORS };
  Lanes sums[SUMS];
  UNROLL for (int i = 0; i < SUMS; i++) sums[i] = all(0);
  multiply(HEIGHT, LOGIT_VECTORS, sums, query, width, 1, panel, COLS, width);
  UNROLL for (int m = 0; m < HEIGHT; m++) {
    Lanes top = load(most + m * LANES);
    UNROLL for (int v = 0; v < LOGIT_VECTORS; v++) {
      const Lanes logit = sums[m * LOGIT_VECTORS + v] + load(bias + v * LANES);
      store(logits + m * COLS + v * LANES, logit);
      top = larger(logit, top);
    }
    store(most + m * LANES, top);
  }
}

static void fill_logits(const Sweep *s, Block *b, int64_t height) {
  enum { HEIGHT = SUMS / LOGIT_VECTORS };
  for (int64_t p = 0; p < s->n_panels; p++) {
    const float *panel = s->panels + p * s->width * COLS;
    for (int64_t c = 0; c < COLS; c += LOGIT_VECTORS * LANES) {
      for (int64_t i = 0; i < height; i += HEIGHT) {
        logit_tile(b->query + i * s->width, s->width, panel + c, s->bias + p * COLS + c,
                   b->logits + p * PANEL + i * COLS + c, b->most + i * LANES);
      }
    }
  }
}

static float *logit(const Block *b, int64_t i, int64_t j) {
  return b->logits + j / COLS * PANEL + i * COLS + j % COLS;
}

static float top_of_row(const Sweep *s, const Block *b, int64_t i) {
  Lanes most = all(-INFINITY);
  for (int64_t p = 0; p < s->n_panels; p++) {
    for (int64_t c = 0; c < COLS; c += LANES) most = larger(load(logit(b, i, p * COLS + c)), most);
  }
  return largest_in(most);
}

/* Masks a column of row i. Returns its logit. */
static float hide(const Block *b, int64_t i, int64_t column) {
  float *at = logit(b, i, column);
  const float hidden = *at;
  *at = -INFINITY;
  return hidden;
}

/* Masks the columns of a query's known positives in row i. Returns the largest of their
   logits. */
static float hide_known(const Sweep *s, const Block *b, int64_t i, int64_t query, int64_t own) {
  float most = -INFINITY;
  for (int64_t k = query * s->n_known; k < (query + 1) * s->n_known; k++) {
    if (s->known[k] == 0) continue;
    const int64_t column = column_of(&s->items, s->known[k]);
    if (column >= 0 && column != own) most = greater(most, hide(b, i, column));
  }
  return most;
}

/* Masks row i except its negatives, and finds its positive and its largest logit. */
static void mask_row(const Sweep *s, Block *b, int64_t i, int64_t query) {
  const int64_t positive = s->first + query, own = s->items.column[positive];
  const int is_apart = !is_column(&s->items, positive);
  float top = largest_in(load(b->most + i * LANES));
  float hidden = hide_known(s, b, i, query, own);
  b->is_apart[i] = is_apart;
  if (is_apart) {
    const float *candidate = s->candidate + positive * s->dim;
    b->positive[i] =
        inner_product(b->query + i * s->width, 0, candidate, s->dim) - s->log_q[positive];
  } else {
    b->positive[i] = *logit(b, i, own);
  }
  if (is_apart) hidden = greater(hidden, hide(b, i, own));
  if (hidden >= top) top = top_of_row(s, b, i);
  b->top[i] = greater(top, b->positive[i]);
}

static void take_exponentials(const Sweep *s, Block *b, int64_t n) {
  for (int64_t p = 0; p < s->n_panels; p++) {
    for (int64_t i = 0; i < n; i++) {
      const Lanes top = all(b->top[i]);
      float *row = b->logits + p * PANEL + i * COLS;
      Lanes sum = load(b->sum + i * LANES);
      UNROLL for (int c = 0; c < COLS; c += LANES) {
        const Lanes e = exp_of(load(row + c) - top);
        store(row + c, e);
        sum += e;
      }
      store(b->sum + i * LANES, sum);
    }
  }
}

/* Writes the losses, and prepares the exponentials for the gradients: the gradient of a logit is
   w_i (p_ij - positive_scale [j is positive]), which is `share` times the block's value. */
static void finish_losses(const Sweep *s, Block *b, int64_t start, int64_t n, int64_t height) {
  for (int64_t i = 0; i < n; i++) {
    const float apart = b->is_apart[i] ? expf(b->positive[i] - b->top[i]) : 0;
    const float sum = sum_lanes(load(b->sum + i * LANES)) + apart;
    const float positive_slope = s->positive_scale * sum;
    s->loss[start + i] = logf(sum) + (b->top[i] - s->positive_scale * b->positive[i]);
    b->share[i] = s->weight[start + i] / sum;
    b->slope[i] = apart - positive_slope;
    if (!b->is_apart[i]) *logit(b, i, s->items.column[s->first + start + i]) -= positive_slope;
  }
  for (int64_t i = n; i < height; i++) b->share[i] = 0;
}

/* Adds a panel's gradient of log_q, with the opposite sign. */
static void add_shares(const Block *b, const float *panel, int64_t height, float *into, int fresh) {
  for (int64_t c = 0; c < COLS; c += LANES) {
    Lanes sum = fresh ? all(0) : load(into + c);
    for (int64_t i = 0; i < height; i++) sum += load(panel + i * COLS + c) * b->share[i];
    store(into + c, sum);
  }
}

static void take_gradients(const Sweep *s, Block *b, int64_t height, int64_t lane, int fresh) {
  const int64_t width = s->width;
  for (int64_t i = 0; i < height; i++) {
    for (int64_t d = 0; d < width; d++) {
      b->query_times_p[i * width + d] = b->query[i * width + d] * b->share[i];
    }
  }
  for (int64_t p = 0; p < s->n_panels; p++) {
    const int64_t start = p * COLS, at = lane * s->capacity + start;
    float *panel = b->logits + p * PANEL;
    const Product to_query = {
        .into = b->d_query, .height = height, .width = width, .fresh = p == 0,
        .factor = panel, .matrix = s->rows + start * width, .stride = width,
        .depth = least(COLS, s->items.n_columns - start)};
    product_of(&to_query);
    const Product to_candidate = {
        .into = s->lane_rows + at * width, .height = COLS, .width = width, .fresh = fresh,
        .factor = panel, .matrix = b->query_times_p, .stride = width, .depth = height};
    product_of_transposed(&to_candidate);
    if (s->d_log_q != NULL) add_shares(b, panel, height, s->lane_log_q + at, fresh);
  }
}

/* Adds the gradients between row i and its positive, which is apart. */
static void add_apart(const Sweep *s, const Block *b, int64_t i, int64_t positive) {
  const float *candidate = s->candidate + positive * s->dim;
  const float *query = b->query_times_p + i * s->width;
  float *restrict d_query = b->d_query + i * s->width;
  float *restrict d_candidate = s->d_candidate + positive * s->dim;
  for (int64_t d = 0; d < s->dim; d++) {
    d_query[d] += b->slope[i] * candidate[d];
    d_candidate[d] = b->slope[i] * query[d];
  }
  if (s->d_log_q != NULL) s->d_log_q[positive] = -b->slope[i] * b->share[i];
}

static void write_d_query(const Sweep *s, const Block *b, int64_t start, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    if (b->is_apart[i]) add_apart(s, b, i, s->first + start + i);
    const float factor = s->scale * b->share[i];
    const float *from = b->d_query + i * s->width;
    float *restrict to = s->d_query + (start + i) * s->dim;
    for (int64_t d = 0; d < s->dim; d++) to[d] = factor * from[d];
  }
}

static void run_block(const Sweep *s, Block *b, int64_t lane, int64_t tile, int64_t n_tiles,
                      int fresh) {
  const int64_t start = tile * TILE, height = n_tiles * TILE;
  const int64_t n = least(height, s->n_queries - start);
  take_queries(s, b, start, n, height);
  fill_logits(s, b, height);
  for (int64_t i = 0; i < n; i++) mask_row(s, b, i, start + i);
  take_exponentials(s, b, n);
  finish_losses(s, b, start, n, height);
  if (s->d_query == NULL) return;
  take_gradients(s, b, height, lane, fresh);
  write_d_query(s, b, start, n);
}

/* ---- Lanes ---- */

/* Returns the free lane with the most work left; -1 if there is none. */
static int64_t take_lane(Sweep *s, int64_t done) {
  int64_t best = -1, most = 0;
  pthread_mutex_lock(&s->lock);
  if (done >= 0) s->lanes[done].busy = 0;
  for (int64_t i = 0; i < s->n_lanes; i++) {
    const int64_t left = s->lanes[i].n_blocks - s->lanes[i].next_block;
    if (!s->lanes[i].busy && left > most) {
      best = i;
      most = left;
    }
  }
  if (best >= 0) s->lanes[best].busy = 1;
  pthread_mutex_unlock(&s->lock);
  return best;
}

static Block block_of(const Sweep *s, int worker) {
  Block b;
  b.logits = s->blocks + worker * s->block_floats;
  b.query = b.logits + s->n_panels * PANEL;
  b.query_times_p = b.query + ROWS * s->width;
  b.d_query = b.query_times_p + ROWS * s->width;
  b.most = b.d_query + ROWS * s->width;
  b.sum = b.most + ROWS * LANES;
  return b;
}

/* Works until no lane is free; other threads finish the lanes that they hold. */
static void sweep_lanes(void *context, int64_t task, int worker) {
  (void)task;
  Sweep *s = context;
  Block b = block_of(s, worker);
  for (int64_t lane = take_lane(s, -1); lane >= 0; lane = take_lane(s, lane)) {
    Lane *l = &s->lanes[lane];
    const int64_t k = l->next_block++, from = k * l->n_tiles / l->n_blocks;
    const int64_t to = (k + 1) * l->n_tiles / l->n_blocks;
    run_block(s, &b, lane, l->tile + from, to - from, k == 0);
  }
}

static void add_lanes(void *context, int64_t task, int worker) {
  (void)worker;
  Sweep *s = context;
  const int64_t start = task * PREPARE_PANELS * COLS;
  const int64_t end = least(start + PREPARE_PANELS * COLS, s->items.n_columns);
  for (int64_t c = start; c < end; c++) {
    float *restrict to = s->d_candidate + s->items.first[c] * s->dim;
    for (int64_t lane = 0; lane < s->n_lanes; lane++) {
      const float *from = s->lane_rows + (lane * s->capacity + c) * s->width;
      if (lane == 0) memcpy(to, from, (size_t)s->dim * sizeof *to);
      for (int64_t d = 0; d < s->dim && lane > 0; d++) to[d] += from[d];
    }
  }
  for (int64_t c = start; c < end && s->d_log_q != NULL; c++) {
    float sum = 0;
    for (int64_t lane = 0; lane < s->n_lanes; lane++) sum += s->lane_log_q[lane * s->capacity + c];
    s->d_log_q[s->items.first[c]] = -sum;
  }
}

/* ---- The call ---- */

static void deal_lanes(Sweep *s) {
  const int64_t tiles = up(s->n_queries, TILE) / TILE;
  for (int64_t i = 0; i < s->n_lanes; i++) {
    Lane *l = &s->lanes[i];
    l->tile = i * tiles / s->n_lanes;
    l->n_tiles = (i + 1) * tiles / s->n_lanes - l->tile;
    l->n_blocks = up(l->n_tiles * TILE, ROWS) / ROWS;
  }
}

/* Scratch memory, allocated from its start on; only counted while `start` is NULL. */
typedef struct {
  char *start;
  size_t used;
} Arena;

static void *take(Arena *arena, int64_t n, size_t size) {
  char *taken = arena->start == NULL ? NULL : arena->start + arena->used;
  arena->used += (size_t)up(n * (int64_t)size, 64);
  return taken;
}

/* Sized for the largest number of columns; unused memory is not touched. */
static void lay_out(Sweep *s, Arena *arena, int workers) {
  const int64_t lanes = s->d_query != NULL ? s->n_lanes : 0;
  const size_t number = sizeof(float);
  s->items.column = take(arena, s->n_candidates, sizeof(int32_t));
  s->items.first = take(arena, s->n_candidates, sizeof(int32_t));
  s->items.slots = take(arena, s->items.n_slots, sizeof(int32_t));
  s->panels = take(arena, s->capacity * s->width, number);
  s->copies = take(arena, s->capacity * s->width, number);
  s->bias = take(arena, s->capacity, number);
  s->lane_rows = take(arena, lanes * s->capacity * s->width, number);
  s->lane_log_q = take(arena, lanes * s->capacity, number);
  s->block_floats = s->capacity * ROWS + 3 * ROWS * s->width + 2 * ROWS * LANES;
  s->blocks = take(arena, workers * s->block_floats, number);
}

/* Returns the number of lanes, limited by LANES_BYTES of sums. It depends only on shapes. */
static int64_t count_lanes(const Sweep *s) {
  const int64_t wanted = up(s->n_queries, LANE_QUERIES) / LANE_QUERIES;
  const int64_t fit = LANES_BYTES / (s->capacity * s->width * (int64_t)sizeof(float));
  return least(wanted, least(MAX_LANES, fit < MIN_LANES ? MIN_LANES : fit));
}

static void choose_columns(Sweep *s) {
  number_columns(&s->items);
  s->n_panels = up(s->items.n_columns, COLS) / COLS;
  if (s->dim == s->width && s->items.n_columns == s->n_candidates) s->copies = NULL;
  s->rows = s->copies != NULL ? s->copies : s->candidate;
}

/* Returns 0 if there is no memory. */
static int run(Sweep *s, XLA_FFI_CallFrame *frame, int workers) {
  s->width = up(s->dim, DIM_STEP);
  s->capacity = up(s->n_candidates, COLS);
  s->n_lanes = count_lanes(s);
  s->items.n_positions = s->n_candidates;
  s->items.n_slots = count_slots(s->n_candidates);
  if (workers > s->n_lanes) workers = (int)s->n_lanes;
  deal_lanes(s);
  Arena arena = {0};
  lay_out(s, &arena, workers);
  arena.start = recsys_scratch_take(arena.used);
  if (arena.start == NULL) return 0;
  arena.used = 0;
  lay_out(s, &arena, workers);
  choose_columns(s);
  pthread_mutex_init(&s->lock, NULL);
  const int64_t chunks = up(s->capacity, PREPARE_PANELS * COLS) / (PREPARE_PANELS * COLS);
  const RecsysPhase phases[] = {
      {chunks, prepare}, {workers, sweep_lanes}, {s->d_query != NULL ? chunks : 0, add_lanes}};
  recsys_run(frame, workers, phases, 3, s);
  pthread_mutex_destroy(&s->lock);
  recsys_scratch_give(arena.start);
  return 1;
}

enum { MAX_DIM = 1024, MAX_CANDIDATES = 1 << 28 };

/* Returns an error if the arrays of a call are invalid, else NULL. */
static XLA_FFI_Error *expect(XLA_FFI_CallFrame *frame, int with_gradients) {
  const XLA_FFI_DataType number = XLA_FFI_DataType_F32, integer = XLA_FFI_DataType_S32;
  const int64_t b = recsys_dim(recsys_arg(frame, 0), 0), dim = recsys_dim(recsys_arg(frame, 0), 1);
  const int64_t n = recsys_dim(recsys_arg(frame, 1), 0);
  const RecsysArray arrays[] = {
      {"query", recsys_arg(frame, 0), number, 2, {RECSYS_ANY, RECSYS_ANY}},
      {"candidate", recsys_arg(frame, 1), number, 2, {RECSYS_ANY, dim}},
      {"item_row", recsys_arg(frame, 2), integer, 1, {n}},
      {"log_q", recsys_arg(frame, 3), number, 1, {n}},
      {"weight", recsys_arg(frame, 4), number, 1, {b}},
      {"known", recsys_arg(frame, 5), integer, 2, {b, RECSYS_ANY}},
      {"scale", recsys_arg(frame, 6), number, 1, {1}},
      {"first", recsys_arg(frame, 7), integer, 1, {1}},
      {"positive_scale", recsys_arg(frame, 8), number, 1, {1}},
      {"loss", recsys_ret(frame, 0), number, 1, {b}}};
  XLA_FFI_Error *error = recsys_expect(frame, arrays, 10);
  if (error != NULL || !with_gradients) return error;
  const XLA_FFI_Buffer *d_log_q = recsys_ret(frame, 3);
  const RecsysArray gradients[] = {
      {"d_query", recsys_ret(frame, 1), number, 2, {b, dim}},
      {"d_candidate", recsys_ret(frame, 2), number, 2, {n, dim}},
      {"d_log_q", d_log_q, number, 1, {recsys_dim(d_log_q, 0) == 0 ? 0 : n}}};
  return recsys_expect(frame, gradients, 3);
}

/* Arguments: query [b, D], candidate [N, D], item_row [N] int32, log_q [N], weight [b],
   known [b, P] int32, scale [1] (1 / temperature), first [1] int32, positive_scale [1].
   Results: loss [b]; for gradients also d_query [b, D], d_candidate [N, D], d_log_q [N] (or [0]). */
RECSYS_HANDLER(candidate_loss) {
  const int with_gradients = frame->rets.size == 4;
  XLA_FFI_Error *error = recsys_check(frame, 9, with_gradients ? 4 : 1);
  if (error == NULL) error = expect(frame, with_gradients);
  if (error != NULL) return error;
  Sweep s = {
      .n_queries = recsys_dim(recsys_arg(frame, 0), 0),
      .n_candidates = recsys_dim(recsys_arg(frame, 1), 0),
      .dim = recsys_dim(recsys_arg(frame, 0), 1),
      .query = recsys_arg(frame, 0)->data,
      .candidate = recsys_arg(frame, 1)->data,
      .items.item_row = recsys_arg(frame, 2)->data,
      .log_q = recsys_arg(frame, 3)->data,
      .weight = recsys_arg(frame, 4)->data,
      .known = recsys_arg(frame, 5)->data,
      .n_known = recsys_dim(recsys_arg(frame, 5), 1),
      .scale = *(const float *)recsys_arg(frame, 6)->data,
      .positive_scale = *(const float *)recsys_arg(frame, 8)->data,
      .first = *(const int32_t *)recsys_arg(frame, 7)->data,
      .loss = recsys_ret(frame, 0)->data,
  };
  if (with_gradients) {
    s.d_query = recsys_ret(frame, 1)->data;
    s.d_candidate = recsys_ret(frame, 2)->data;
    s.d_log_q = recsys_dim(recsys_ret(frame, 3), 0) > 0 ? recsys_ret(frame, 3)->data : NULL;
  }
  if (s.n_queries < 1 || s.dim < 1 || s.dim > MAX_DIM || s.n_candidates > MAX_CANDIDATES) {
    return recsys_fail(frame, "recsys: the softmax takes 1 … 1024 dims and 2^28 candidates");
  }
  if (s.first < 0 || s.first + s.n_queries > s.n_candidates) {
    return recsys_fail(frame, "recsys: a query's positive is not among the candidates");
  }
  if (!run(&s, frame, recsys_workers(frame))) {
    return recsys_fail(frame, "recsys: no memory for the softmax");
  }
  return NULL;
}

/* The loss of two equal candidates is log 2, of two copies of one item 0. */
RECSYS_SELF_CHECK(softmax) {
  const float ones[4] = {1, 1, 1, 1}, none[2] = {0, 0}, weight[2] = {1, 1};
  const int32_t items[2][2] = {{1, 2}, {7, 7}};
  const float expected[2] = {0.693147181f, 0};
  for (int i = 0; i < 2; i++) {
    float loss[2], d_query[4], d_candidate[4], d_log_q[2];
    Sweep s = {.n_queries = 2, .n_candidates = 2, .dim = 2, .query = ones, .candidate = ones,
               .items.item_row = items[i], .log_q = none, .weight = weight, .scale = 1, .positive_scale = 1,
               .loss = loss, .d_query = d_query, .d_candidate = d_candidate, .d_log_q = d_log_q};
    if (!run(&s, NULL, 1) || !(fabsf(loss[0] - expected[i]) < 1e-6f) ||
        !(fabsf(d_query[0]) < 1e-6f)) {
      return 1;
    }
  }
  return 0;
}
