/* The sampled softmax and its gradients in one sweep, without the queries × candidates
   matrix. For query i with weight w_i, and all candidates j:

       logit_ij = query_i · candidate_j / temperature - log_q_j
       loss_i   = log sum_j exp(logit_ij) - logit_i,positive

   The positive of query i is candidate first + i; any other candidate of the positive's
   item is left out (an accidental hit). The gradients are those of sum_i w_i loss_i.

   ROWS queries at a time: their logits go into a block that stays in the L2 cache, in
   panels of COLS candidates; the exponentials are taken in place; then each panel gives
   its part of both gradients. Queries are dealt to lanes by their number alone, each
   lane sums its own candidate gradients in the order of its queries, and the lanes are
   added in order: no result depends on the number of threads. */

#include <math.h>
#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lanes.h"

/* ---- Vectors (see lanes.h), and as many sums as the processor has registers for ---- */

#if defined(__AVX512F__)
enum { SUMS = 24, MAX_VECTORS = 4, LOGIT_VECTORS = 3 };
#elif defined(__AVX__)
enum { SUMS = 12, MAX_VECTORS = 2, LOGIT_VECTORS = 2 };
#elif defined(__aarch64__)
enum { SUMS = 24, MAX_VECTORS = 4, LOGIT_VECTORS = 3 };
#else
enum { SUMS = 12, MAX_VECTORS = 4, LOGIT_VECTORS = 3 };
#endif

/* TILE is a multiple of the height of every tile (SUMS / its vectors); ROWS and COLS are
   multiples of TILE, COLS one of each tile's width. */
enum { TILE = 24, ROWS = 96, COLS = 48, PANEL = ROWS * COLS, DIM_STEP = 16 };

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 24")
#endif

RECSYS_INLINE Lanes load(const float *at) { return lanes(at, 0, 0); }
RECSYS_INLINE void store(float *at, Lanes x) { put_lanes(at, 0, x); }

/* x - 0 is x for every x: compilers make it one broadcast. */
RECSYS_INLINE Lanes all(float x) { return x - (Lanes){0}; }

/* The larger of each two numbers; a NaN in `y` stays, one in `x` is lost. */
RECSYS_INLINE Lanes larger(Lanes x, Lanes y) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(__AVX__)
  return (Lanes)_mm256_max_ps((__m256)x, (__m256)y);
#elif defined(__SSE__)
  return (Lanes)_mm_max_ps((__m128)x, (__m128)y);
#else
  const WordLanes is_x = (WordLanes)(x > y);
  return (Lanes)(((WordLanes)x & is_x) | ((WordLanes)y & ~is_x));
#endif
}

static float largest_in(Lanes x) {
  float most = x[0];
  for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
  return most;
}

/* exp(x) for x <= 0, within 2e-7 of it: 0 below -87.7, NaN for NaN. The polynomial is
   Cephes' expf. */
RECSYS_INLINE Lanes exp_of(Lanes x) {
  const Lanes lowest = all(-88.0f), rounder = all(12582912.0f); /* 1.5 · 2^23 */
  x = larger(lowest, x);
  const Lanes shifted = x * 1.44269504089f + rounder, n = shifted - rounder;
  Lanes r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  /* n stands in the low bits of `shifted`; n = -127 gives the factor 0. */
  const WordLanes power = ((WordLanes)shifted << 23) + (127u << 23);
  return p * (Lanes)power;
}

/* ---- Products: sums that stay in registers ---- */

/* sums[m, v] += factor[m * row_step + k * depth_step] * matrix[k * stride + v], k < depth. */
RECSYS_INLINE void multiply(const int rows, const int vectors, Lanes sums[SUMS],
                            const float *factor, const int64_t row_step,
                            const int64_t depth_step, const float *matrix,
                            const int64_t stride, const int64_t depth) {
  for (int64_t k = 0; k < depth; k++) {
    Lanes line[MAX_VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) line[v] = load(matrix + k * stride + v * LANES);
    UNROLL for (int m = 0; m < rows; m++) {
      const Lanes f = all(factor[m * row_step + k * depth_step]);
      UNROLL for (int v = 0; v < vectors; v++) sums[m * vectors + v] += line[v] * f;
    }
  }
}

/* into [height, width] = into (0 if `fresh`) + factor · matrix [depth, width]; the height is
   a multiple of TILE, the width one of DIM_STEP. */
typedef struct {
  float *into;
  int64_t height, width;
  int fresh;
  const float *factor;
  const float *matrix;
  int64_t stride, depth;
} Product;

RECSYS_INLINE void strip(const Product p, const int vectors, const int64_t row_step,
                         const int64_t depth_step, const int64_t column) {
  const int rows = SUMS / vectors;
  for (int64_t row = 0; row < p.height; row += rows) {
    float *into = p.into + row * p.width + column;
    Lanes sums[SUMS];
    UNROLL for (int i = 0; i < rows * vectors; i++) {
      sums[i] = p.fresh ? all(0) : load(into + i / vectors * p.width + i % vectors * LANES);
    }
    multiply(rows, vectors, sums, p.factor + row * row_step, row_step, depth_step,
             p.matrix + column, p.stride, p.depth);
    UNROLL for (int i = 0; i < rows * vectors; i++) {
      store(into + i / vectors * p.width + i % vectors * LANES, sums[i]);
    }
  }
}

RECSYS_INLINE void product(const Product p, const int64_t row_step, const int64_t depth_step) {
  int64_t column = 0;
  for (; column + MAX_VECTORS * LANES <= p.width; column += MAX_VECTORS * LANES) {
    strip(p, MAX_VECTORS, row_step, depth_step, column);
  }
#if defined(__AVX512F__)
  switch ((p.width - column) / LANES) {
    case 1: strip(p, 1, row_step, depth_step, column); break;
    case 2: strip(p, 2, row_step, depth_step, column); break;
    case 3: strip(p, 3, row_step, depth_step, column); break;
    default: break;
  }
#endif
}

/* factor is a panel [height, COLS], or its transpose. */
static __attribute__((noinline)) void product_of(const Product *p) { product(*p, COLS, 1); }
static __attribute__((noinline)) void product_of_transposed(const Product *p) {
  product(*p, 1, COLS);
}

/* ---- The sweep ---- */

enum { MIN_LANES = 4, MAX_LANES = 16, LANE_QUERIES = 256, LANES_BYTES = 1 << 28 };
enum { PREPARE_PANELS = 8 };

/* Queries [tile, end) · TILE, one block after the other. */
typedef struct {
  int64_t next_block, n_blocks, tile, n_tiles;
  int busy;
} Lane;

typedef struct {
  int64_t n_queries, n_candidates, dim, first;
  const float *query, *candidate, *log_q, *weight;
  const int32_t *item_row;
  float scale; /* 1 / temperature */
  float *loss, *d_query, *d_candidate, *d_log_q; /* NULL where not wanted */

  int64_t width, n_panels, n_lanes, n_slots;
  float *panels;            /* [n_panels, width, COLS]: candidates, transposed */
  const float *rows;        /* [n_candidates, width] */
  float *padded;            /* the same where dim isn't width, else NULL */
  float *bias;              /* [n_panels * COLS]: -log_q, then -infinity */
  float *lane_rows;         /* [n_lanes, n_panels * COLS, width] */
  float *lane_log_q;        /* [n_lanes, n_panels * COLS] */
  int32_t *slot, *older;    /* [n_candidates]: its item's slot, the one before of its item */
  int32_t *newest;          /* [n_slots]: the last candidate of an item, or -1 */
  float *blocks;            /* [workers, block_floats] */
  int64_t block_floats;
  pthread_mutex_t lock;
  Lane lanes[MAX_LANES];
} Sweep;

/* What one thread works in. */
typedef struct {
  float *logits;                /* [n_panels, ROWS, COLS] */
  float *query, *query_times_p; /* [ROWS, width]: query / temperature; times `share` too */
  float *d_query;               /* [ROWS, width] */
  float *most, *sum;            /* [ROWS, LANES] */
  float positive[ROWS], top[ROWS], share[ROWS]; /* share: w / sum */
} Block;

static int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- Before: candidates in panels, and those of one item in a chain ---- */

static uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

static void chain_items(Sweep *s) {
  memset(s->newest, 0xFF, (size_t)s->n_slots * sizeof *s->newest);
  for (int64_t j = 0; j < s->n_candidates; j++) {
    int64_t at = mixed((uint32_t)s->item_row[j]) & (s->n_slots - 1);
    while (s->newest[at] >= 0 && s->item_row[s->newest[at]] != s->item_row[j]) {
      at = (at + 1) & (s->n_slots - 1);
    }
    s->older[j] = s->newest[at];
    s->newest[at] = (int32_t)j;
    s->slot[j] = (int32_t)at;
  }
}

static void fill_panel(Sweep *s, int64_t p) {
  const int64_t start = p * COLS, n = least(COLS, s->n_candidates - start);
  float *panel = s->panels + p * s->width * COLS;
  const float *from = s->candidate + start * s->dim;
  for (int64_t d = 0; d < s->width; d++) {
    for (int64_t c = 0; c < COLS; c++) {
      panel[d * COLS + c] = d < s->dim && c < n ? from[c * s->dim + d] : 0;
    }
  }
  for (int64_t c = 0; c < COLS; c++) {
    s->bias[start + c] = c < n ? -s->log_q[start + c] : -INFINITY;
  }
  for (int64_t c = 0; c < n && s->padded != NULL; c++) {
    float *row = s->padded + (start + c) * s->width;
    memset(row, 0, (size_t)s->width * sizeof *row);
    memcpy(row, from + c * s->dim, (size_t)s->dim * sizeof *row);
  }
}

static void prepare(void *context, int64_t task, int worker) {
  (void)worker;
  Sweep *s = context;
  if (task == 0) {
    chain_items(s);
    return;
  }
  const int64_t end = least(task * PREPARE_PANELS, s->n_panels);
  for (int64_t p = (task - 1) * PREPARE_PANELS; p < end; p++) fill_panel(s, p);
}

/* ---- One block: the queries start … start + n, `height` is n rounded up to TILE ---- */

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

/* Masks the accidental hits of row i, finds its positive and its largest logit. */
static void mask_row(const Sweep *s, Block *b, int64_t i, int64_t positive) {
  float masked = -INFINITY, top = largest_in(load(b->most + i * LANES));
  for (int64_t j = s->newest[s->slot[positive]]; j >= 0; j = s->older[j]) {
    if (j == positive) continue;
    float *hit = logit(b, i, j);
    masked = *hit > masked ? *hit : masked;
    *hit = -INFINITY;
  }
  if (masked >= top) top = top_of_row(s, b, i);
  b->positive[i] = *logit(b, i, positive);
  b->top[i] = top;
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

/* Writes the losses, and makes the exponentials ready for the gradients: those of the
   logits are w_i (p_ij - [j is positive]), which is `share` times what the block holds. */
static void finish_losses(const Sweep *s, Block *b, int64_t start, int64_t n, int64_t height) {
  for (int64_t i = 0; i < n; i++) {
    const float sum = sum_lanes(load(b->sum + i * LANES));
    s->loss[start + i] = logf(sum) + (b->top[i] - b->positive[i]);
    b->share[i] = s->weight[start + i] / sum;
    *logit(b, i, s->first + start + i) -= sum;
  }
  for (int64_t i = n; i < height; i++) b->share[i] = 0;
}

/* What log_q of a panel gets, with the other sign. */
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
    const int64_t start = p * COLS, at = lane * s->n_panels * COLS + start;
    float *panel = b->logits + p * PANEL;
    const Product to_query = {
        .into = b->d_query, .height = height, .width = width, .fresh = p == 0,
        .factor = panel, .matrix = s->rows + start * width, .stride = width,
        .depth = least(COLS, s->n_candidates - start)};
    product_of(&to_query);
    const Product to_candidate = {
        .into = s->lane_rows + at * width, .height = COLS, .width = width, .fresh = fresh,
        .factor = panel, .matrix = b->query_times_p, .stride = width, .depth = height};
    product_of_transposed(&to_candidate);
    if (s->d_log_q != NULL) add_shares(b, panel, height, s->lane_log_q + at, fresh);
  }
}

static void write_d_query(const Sweep *s, const Block *b, int64_t start, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
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
  for (int64_t i = 0; i < n; i++) mask_row(s, b, i, s->first + start + i);
  take_exponentials(s, b, n);
  finish_losses(s, b, start, n, height);
  if (s->d_query == NULL) return;
  take_gradients(s, b, height, lane, fresh);
  write_d_query(s, b, start, n);
}

/* ---- Lanes ---- */

/* Returns a lane nobody works on, the one with most to do; -1 if there is none. */
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

/* Works until no lane is left: a lane that another thread holds, it finishes itself. */
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
  const int64_t start = task * PREPARE_PANELS * COLS, lane_size = s->n_panels * COLS;
  const int64_t end = least(start + PREPARE_PANELS * COLS, s->n_candidates);
  for (int64_t j = start; j < end; j++) {
    for (int64_t lane = 0; lane < s->n_lanes; lane++) {
      const float *from = s->lane_rows + (lane * lane_size + j) * s->width;
      float *restrict to = s->d_candidate + j * s->dim;
      if (lane == 0) memcpy(to, from, (size_t)s->dim * sizeof *to);
      for (int64_t d = 0; d < s->dim && lane > 0; d++) to[d] += from[d];
    }
  }
  for (int64_t j = start; j < end && s->d_log_q != NULL; j++) {
    float sum = 0;
    for (int64_t lane = 0; lane < s->n_lanes; lane++) sum += s->lane_log_q[lane * lane_size + j];
    s->d_log_q[j] = -sum;
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

/* Scratch memory that is handed out from its start on; without memory, just counted. */
typedef struct {
  char *start;
  size_t used;
} Arena;

static void *take(Arena *arena, int64_t n, size_t size) {
  char *taken = arena->start == NULL ? NULL : arena->start + arena->used;
  arena->used += (size_t)up(n * (int64_t)size, 64);
  return taken;
}

static void lay_out(Sweep *s, Arena *arena, int workers) {
  const int64_t columns = s->n_panels * COLS, lanes = s->d_query != NULL ? s->n_lanes : 0;
  const size_t number = sizeof(float);
  s->panels = take(arena, columns * s->width, number);
  s->padded = s->dim == s->width ? NULL : take(arena, columns * s->width, number);
  s->rows = s->padded != NULL ? s->padded : s->candidate;
  s->bias = take(arena, columns, number);
  s->lane_rows = take(arena, lanes * columns * s->width, number);
  s->lane_log_q = take(arena, lanes * columns, number);
  s->slot = take(arena, s->n_candidates, sizeof *s->slot);
  s->older = take(arena, s->n_candidates, sizeof *s->older);
  s->newest = take(arena, s->n_slots, sizeof *s->newest);
  s->block_floats = s->n_panels * PANEL + 3 * ROWS * s->width + 2 * ROWS * LANES;
  s->blocks = take(arena, workers * s->block_floats, number);
}

/* Returns the number of lanes: enough for that many threads, unless their sums would take
   more than LANES_BYTES. It depends on the shapes alone. */
static int64_t count_lanes(const Sweep *s) {
  const int64_t wanted = up(s->n_queries, LANE_QUERIES) / LANE_QUERIES;
  const int64_t fit = LANES_BYTES / (s->n_panels * COLS * s->width * (int64_t)sizeof(float));
  return least(wanted, least(MAX_LANES, fit < MIN_LANES ? MIN_LANES : fit));
}

/* Returns 0 if there is no memory. */
static int run(Sweep *s, XLA_FFI_CallFrame *frame, int workers) {
  s->width = up(s->dim, DIM_STEP);
  s->n_panels = up(s->n_candidates, COLS) / COLS;
  s->n_lanes = count_lanes(s);
  for (s->n_slots = 16; s->n_slots < 2 * s->n_candidates;) s->n_slots *= 2;
  if (workers > s->n_lanes) workers = (int)s->n_lanes;
  deal_lanes(s);
  Arena arena = {0};
  lay_out(s, &arena, workers);
  arena.start = recsys_scratch_take(arena.used);
  if (arena.start == NULL) return 0;
  arena.used = 0;
  lay_out(s, &arena, workers);
  pthread_mutex_init(&s->lock, NULL);
  const int64_t chunks = up(s->n_panels, PREPARE_PANELS) / PREPARE_PANELS;
  const RecsysPhase phases[] = {
      {1 + chunks, prepare}, {workers, sweep_lanes}, {s->d_query != NULL ? chunks : 0, add_lanes}};
  recsys_run(frame, workers, phases, 3, s);
  pthread_mutex_destroy(&s->lock);
  recsys_scratch_give(arena.start);
  return 1;
}

enum { MAX_DIM = 1024, MAX_CANDIDATES = 1 << 28 };

/* Arguments: query [b, D], candidate [N, D], item_row [N] int32, log_q [N], weight [b],
   scale [1] (1 / temperature), first [1] int32. Results: loss [b]; for gradients also
   d_query [b, D], d_candidate [N, D], d_log_q [N] (or [0]: not wanted). */
RECSYS_HANDLER(softmax) {
  const int with_gradients = frame->rets.size == 4;
  XLA_FFI_Error *error = recsys_check(frame, 7, with_gradients ? 4 : 1);
  if (error != NULL) return error;
  Sweep s = {
      .n_queries = recsys_dim(recsys_arg(frame, 0), 0),
      .n_candidates = recsys_dim(recsys_arg(frame, 1), 0),
      .dim = recsys_dim(recsys_arg(frame, 0), 1),
      .query = recsys_arg(frame, 0)->data,
      .candidate = recsys_arg(frame, 1)->data,
      .item_row = recsys_arg(frame, 2)->data,
      .log_q = recsys_arg(frame, 3)->data,
      .weight = recsys_arg(frame, 4)->data,
      .scale = *(const float *)recsys_arg(frame, 5)->data,
      .first = *(const int32_t *)recsys_arg(frame, 6)->data,
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

/* Two equal candidates cost log 2, and two of one item nothing. */
RECSYS_SELF_CHECK(softmax) {
  const float ones[4] = {1, 1, 1, 1}, none[2] = {0, 0}, weight[2] = {1, 1};
  const int32_t items[2][2] = {{1, 2}, {7, 7}};
  const float expected[2] = {0.693147181f, 0};
  for (int i = 0; i < 2; i++) {
    float loss[2], d_query[4], d_candidate[4], d_log_q[2];
    Sweep s = {.n_queries = 2, .n_candidates = 2, .dim = 2, .query = ones, .candidate = ones,
               .item_row = items[i], .log_q = none, .weight = weight, .scale = 1, .loss = loss,
               .d_query = d_query, .d_candidate = d_candidate, .d_log_q = d_log_q};
    if (!run(&s, NULL, 1) || !(fabsf(loss[0] - expected[i]) < 1e-6f) ||
        !(fabsf(d_query[0]) < 1e-6f)) {
      return 1;
    }
  }
  return 0;
}
