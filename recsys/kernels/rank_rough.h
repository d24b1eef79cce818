/* State of a query with approximate scores: the items that may be among its best, with bounds of
   their scores, and a lower bound of the k-th best score.

   Bounds are in units of the query's own step: the score of an item is its product of bytes,
   divided by the item's number of steps per unit, within a margin. */

#ifndef RECSYS_RANK_ROUGH_H_
#define RECSYS_RANK_ROUGH_H_

#include <string.h>

#include "rank_bytes.h"
#include "rank_query.h"

typedef struct {
  int32_t *lower; /* [capacity]: lower bound of the score, see `ordered` */
  float *upper;   /* [capacity]: upper bound */
  int32_t *row;   /* [capacity] */
  int64_t n, due; /* number of kept items; number at which they are pruned */
  int32_t *hidden; /* a hash table of item rows; -1 is free */
  int32_t hidden_mask;
  int is_given_up; /* too many items have similar scores */
} Rough;

/* Maps floats to integers in the same order. */
RECSYS_INLINE int32_t ordered(float x) {
  const int32_t bits = (int32_t)bits_of(x);
  return bits ^ (bits >> 31 & INT32_MAX);
}

RECSYS_INLINE float unordered(int32_t x) { return float_of((uint32_t)(x ^ (x >> 31 & INT32_MAX))); }

/* ---- Rows that a query hides ---- */

RECSYS_INLINE int32_t slot_of_row(const Rough *r, int32_t row) {
  return (int32_t)((uint32_t)row * 2654435769u >> 7) & r->hidden_mask;
}

/* Returns the size of a hash table for `n` rows: a power of 2, at most half full. */
static int64_t hidden_slots(int64_t n) {
  int64_t slots = 1;
  while (slots < 2 * n) slots *= 2;
  return slots;
}

static void hide(Rough *r, const int32_t *rows, int64_t n) {
  r->hidden_mask = (int32_t)hidden_slots(n) - 1;
  for (int64_t i = 0; i <= r->hidden_mask; i++) r->hidden[i] = -1;
  for (int64_t i = 0; i < n; i++) {
    int32_t at = slot_of_row(r, rows[i]);
    while (r->hidden[at] >= 0 && r->hidden[at] != rows[i]) at = (at + 1) & r->hidden_mask;
    r->hidden[at] = rows[i];
  }
}

RECSYS_INLINE int is_hidden(const Rough *r, int32_t row) {
  int32_t at = slot_of_row(r, row);
  for (; r->hidden[at] >= 0; at = (at + 1) & r->hidden_mask) {
    if (r->hidden[at] == row) return 1;
  }
  return 0;
}

/* ---- The lower bound of the k-th best ---- */

static int64_t count_not_below(const int32_t *values, int64_t n, int32_t least) {
  int32_t count = 0;
  for (int64_t i = 0; i < n; i++) count += values[i] >= least;
  return count;
}

/* Returns a lower bound of the k-th highest value, which at least `k` values reach. */
static int32_t reached_by(const int32_t *values, int64_t n, int64_t k) {
  int32_t low = INT32_MAX, high = INT32_MIN;
  for (int64_t i = 0; i < n; i++) {
    low = values[i] < low ? values[i] : low;
    high = values[i] > high ? values[i] : high;
  }
  int64_t above = (int64_t)high + 1; /* Fewer than k values reach it. */
  while (above - low > 1) {
    const int32_t middle = (int32_t)(low + (above - low) / 2);
    const int64_t count = count_not_below(values, n, middle);
    if (count >= k) low = middle;
    if (count < k) above = middle;
    if (count == k) break;
  }
  return low;
}

/* Drops items that can't reach `least`, except the first `kept`. */
static void drop_below(Rough *r, int64_t kept, float least) {
  int64_t n = kept;
  for (int64_t i = kept; i < r->n; i++) {
    const float upper = r->upper[i];
    r->lower[n] = r->lower[i];
    r->upper[n] = upper;
    r->row[n] = r->row[i];
    n += upper >= least;
  }
  r->n = n;
}

/* Returns a lower bound of the k-th best score, and drops items that can't reach it. */
static float tighten(Rough *r, int64_t k) {
  if (r->n < k) return -INFINITY;
  const float least = unordered(reached_by(r->lower, r->n, k));
  drop_below(r, 0, least);
  return least;
}

/* Moves items that surely reach `least` to the front; returns their number. */
static int64_t put_sure_first(Rough *r, float least) {
  const int32_t bound = ordered(least);
  int64_t n = 0;
  for (int64_t i = 0; i < r->n; i++) {
    if (r->lower[i] < bound) continue;
    const Rough x = *r;
    const int32_t lower = x.lower[i], row = x.row[i];
    const float upper = x.upper[i];
    x.lower[i] = x.lower[n], x.upper[i] = x.upper[n], x.row[i] = x.row[n];
    x.lower[n] = lower, x.upper[n] = upper, x.row[n] = row;
    n++;
  }
  return n;
}

/* ---- The best, by exact scores ---- */

enum { AT_ONCE = 8, COUNTED = 1024 };

/* Returns sum + x * y as rank.c computes it: rounded once if the processor has FMA. */
RECSYS_INLINE float add_product(float sum, float x, float y) {
#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
  return __builtin_fmaf(x, y, sum);
#else
  return sum + x * y;
#endif
}

/* Replaces the bounds of items `from` … `to` by exact scores. Each is one sum over the
   dimensions, by the operations of rank.c in the same order: bitwise equal. */
static void score_rows(const float *query, int64_t dim, const float *table, int64_t stride,
                       Rough *r, int64_t from, int64_t to) {
  for (int64_t start = from; start < to; start += AT_ONCE) {
    const float *at[AT_ONCE];
    float sums[AT_ONCE] = {0};
    for (int64_t i = 0; i < AT_ONCE; i++) {
      at[i] = table + (int64_t)r->row[start + i < to ? start + i : start] * stride;
      const int64_t next = start + AT_ONCE + i;
      if (next < to) prefetch(table + (int64_t)r->row[next] * stride, dim * 4, NEAR_TO_READ);
    }
    for (int64_t d = 0; d < dim; d++) {
      UNROLL for (int i = 0; i < AT_ONCE; i++) sums[i] = add_product(sums[i], at[i][d], query[d]);
    }
    for (int64_t i = 0; i < AT_ONCE && start + i < to; i++) {
      r->upper[start + i] = sums[i] + 0.0f; /* -0 becomes 0 */
      r->lower[start + i] = ordered(r->upper[start + i]);
    }
  }
}

/* Writes the keys (rank_query.h) of the `k` best exact scores in order; returns their number. */
static int64_t sort_best(Rough *r, int64_t k, uint64_t *keys, uint64_t *sorted) {
  tighten(r, k);
  for (int64_t i = 0; i < r->n; i++) keys[i] = key_of(r->upper[i], r->row[i]);
  if (r->n > COUNTED) {
    qsort(keys, (size_t)r->n, sizeof *keys, by_key);
    memcpy(sorted, keys, (size_t)(r->n < k ? r->n : k) * sizeof *keys);
    return r->n < k ? r->n : k;
  }
  for (int64_t i = 0; i < r->n; i++) {
    int64_t rank = 0;
    const uint64_t key = keys[i];
    for (int64_t j = 0; j < r->n; j++) rank += keys[j] < key;
    if (rank < k) sorted[rank] = key;
  }
  return r->n < k ? r->n : k;
}

#endif  // RECSYS_RANK_ROUGH_H_
