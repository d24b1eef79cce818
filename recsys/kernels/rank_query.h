/* State of a query during the sweep over the catalogue: the number of items before each of its
   positives, its hidden items, and its best items so far. */

#ifndef RECSYS_RANK_QUERY_H_
#define RECSYS_RANK_QUERY_H_

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "softmax_products.h"

/* A strip: the scores of one query for WIDTH successive items. */
enum { VECTORS = LOGIT_VECTORS, WIDTH = VECTORS * LANES };

typedef struct {
  float score;
  int32_t row;
  int64_t query, index; /* among the job's queries, among all positives */
  int64_t before;       /* items that rank before it */
} Positive;

typedef struct {
  Positive *positives; /* by ascending score, then by descending row */
  int64_t n_positives;
  int32_t *hidden; /* item rows, ascending */
  int64_t n_hidden, next_hidden;
  uint64_t *best; /* a heap with the worst on top */
  int64_t n_best, k;
  float least; /* a score must exceed it to be among the best */
} Query;

/* HEIGHT: queries of a tile, whose scores of one strip stay in registers. Watch: the values that
   they are compared with there, for each query. */
enum { HEIGHT = SUMS / VECTORS };

typedef struct {
  float lowest[HEIGHT];   /* scores from it on rank before the lowest positive */
  int64_t before[HEIGHT]; /* items before that positive */
  float gate[HEIGHT];     /* a strip with lower scores only changes nothing else */
  int64_t event[HEIGHT];  /* next item row that is hidden, or that positive's row */
} Watch;

/* ---- Comparisons: a bit for each lane; NaN is neither above nor equal ---- */

#if defined(__AVX512F__)
RECSYS_INLINE uint64_t above(Lanes x, Lanes y) {
  return _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_GT_OQ);
}
RECSYS_INLINE uint64_t not_below(Lanes x, Lanes y) {
  return _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_GE_OQ);
}
#else
RECSYS_INLINE uint64_t bits_of_lanes(WordLanes is) {
#if defined(__AVX__)
  return (uint64_t)_mm256_movemask_ps((__m256)is);
#elif defined(__SSE__)
  return (uint64_t)_mm_movemask_ps((__m128)is);
#else
  uint64_t bits = 0;
  for (int i = 0; i < LANES; i++) bits |= (uint64_t)(is[i] & 1) << i;
  return bits;
#endif
}
RECSYS_INLINE uint64_t above(Lanes x, Lanes y) { return bits_of_lanes((WordLanes)(x > y)); }
RECSYS_INLINE uint64_t not_below(Lanes x, Lanes y) { return bits_of_lanes((WordLanes)(x >= y)); }
#endif

RECSYS_INLINE uint64_t strip_above(const Lanes *strip, float score) {
  const Lanes y = all(score);
  uint64_t bits = 0;
  UNROLL for (int v = 0; v < VECTORS; v++) bits |= above(strip[v], y) << (v * LANES);
  return bits;
}

RECSYS_INLINE uint64_t strip_not_below(const Lanes *strip, float score) {
  const Lanes y = all(score);
  uint64_t bits = 0;
  UNROLL for (int v = 0; v < VECTORS; v++) bits |= not_below(strip[v], y) << (v * LANES);
  return bits;
}

/* ---- The best: a heap of keys; the smallest key is the best item ---- */

/* Orders by score, the highest first, then by row. */
static uint64_t key_of(float score, int32_t row) {
  const uint32_t bits = bits_of(score + 0.0f); /* -0 becomes 0 */
  const uint32_t ascending = bits ^ (bits >> 31 ? UINT32_MAX : 1u << 31);
  return (uint64_t)~ascending << 32 | (uint32_t)row;
}

static float score_of(uint64_t key) {
  const uint32_t ascending = ~(uint32_t)(key >> 32);
  return float_of(ascending ^ (ascending >> 31 ? 1u << 31 : UINT32_MAX));
}

/* Puts `key` at the top of the heap, or below. */
static void sink(uint64_t *heap, int64_t n, int64_t at, uint64_t key) {
  for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
    if (child + 1 < n && heap[child + 1] > heap[child]) child++;
    if (heap[child] <= key) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = key;
}

static __attribute__((noinline)) void keep(Query *q, uint64_t key) {
  if (q->n_best < q->k) {
    q->best[q->n_best++] = key;
    if (q->n_best < q->k) return;
    for (int64_t i = q->k / 2 - 1; i >= 0; i--) sink(q->best, q->k, i, q->best[i]);
  } else {
    sink(q->best, q->k, 0, key);
  }
  q->least = score_of(q->best[0]);
}

static int by_key(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* ---- Watching ---- */

/* Returns the lowest number above `x`; NaN for infinity. If denormals are flushed to 0, returns
   the lowest normal number above 0. */
static float next_above(float x) {
  if (x == INFINITY) return NAN;
  const float next = nextafterf(x, INFINITY);
  return next > x ? next : FLT_MIN;
}

/* Sets the watched values from the strip at `start` on. */
static void watch(const Query *q, Watch *w, int64_t m, int64_t start) {
  const Positive *lowest = q->n_positives > 0 ? &q->positives[0] : NULL;
  const float second = q->n_positives > 1 ? q->positives[1].score : INFINITY;
  w->gate[m] = second < q->least ? second : q->least;
  w->event[m] = q->next_hidden < q->n_hidden ? q->hidden[q->next_hidden] : INT64_MAX;
  w->lowest[m] = INFINITY;
  if (lowest == NULL) return;
  /* Items with an equal score rank before it if their rows are lower. */
  w->lowest[m] = lowest->row < start ? next_above(lowest->score) : lowest->score;
  if (lowest->row >= start && lowest->row < w->event[m]) w->event[m] = lowest->row;
}

/* Counts the items before the lowest positive. Returns whether the strip that ends at `end` must
   be processed. */
RECSYS_INLINE unsigned look(const Lanes *strip, Watch *w, int m, int64_t end) {
  const Lanes lowest = all(w->lowest[m]), gate = all(w->gate[m]);
  uint64_t before = 0, open = 0;
  UNROLL for (int v = 0; v < VECTORS; v++) {
    before |= not_below(strip[v], lowest) << (v * LANES);
    open |= not_below(strip[v], gate);
  }
  w->before[m] += __builtin_popcountll(before);
  return (open != 0) | (w->event[m] < end);
}

/* ---- One strip ---- */

/* Returns the columns of the strip at `start` whose items rank before `p`. */
RECSYS_INLINE uint64_t before(const Lanes *strip, int64_t start, const Positive *p) {
  if (p->row >= start + WIDTH) return strip_not_below(strip, p->score);
  const uint64_t higher = strip_above(strip, p->score);
  if (p->row <= start) return higher;
  return higher | (strip_not_below(strip, p->score) & (((uint64_t)1 << (p->row - start)) - 1));
}

/* Hides items, and corrects the count of `look`, which doesn't consider events. */
static __attribute__((noinline)) void take_event(Query *q, Watch *w, int64_t m, float *scores,
                                                 int64_t start) {
  Lanes strip[VECTORS];
  UNROLL for (int v = 0; v < VECTORS; v++) strip[v] = load(scores + v * LANES);
  w->before[m] -= __builtin_popcountll(strip_not_below(strip, w->lowest[m]));
  while (q->next_hidden < q->n_hidden && q->hidden[q->next_hidden] < start + WIDTH) {
    scores[q->hidden[q->next_hidden++] - start] = NAN;
  }
  UNROLL for (int v = 0; v < VECTORS; v++) strip[v] = load(scores + v * LANES);
  if (q->n_positives > 0) {
    w->before[m] += __builtin_popcountll(before(strip, start, &q->positives[0]));
  }
}

/* Counts and keeps the items of a strip. May change `scores` [WIDTH]. */
static void take_strip(Query *q, Watch *w, int64_t m, float *scores, int64_t start) {
  if (w->event[m] < start + WIDTH) take_event(q, w, m, scores, start);
  Lanes strip[VECTORS];
  UNROLL for (int v = 0; v < VECTORS; v++) strip[v] = load(scores + v * LANES);
  /* Items that aren't before a positive aren't before positives with higher scores. */
  for (int64_t i = 1; i < q->n_positives; i++) {
    const uint64_t found = before(strip, start, &q->positives[i]);
    if (found == 0) break;
    q->positives[i].before += __builtin_popcountll(found);
  }
  uint64_t found = strip_above(strip, q->least);
  for (; found != 0; found &= found - 1) {
    const int column = __builtin_ctzll(found);
    if (scores[column] > q->least) {
      keep(q, key_of(scores[column], (int32_t)(start + column)));
    }
  }
  watch(q, w, m, start + WIDTH);
}

#endif  // RECSYS_RANK_QUERY_H_
