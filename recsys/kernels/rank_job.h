/* A job: about a hundred queries that one thread ranks; its setup and its results. */

#ifndef RECSYS_RANK_JOB_H_
#define RECSYS_RANK_JOB_H_

#include <string.h>

#include "rank_query.h"

/* Mirrored by rank_jobs.py. Queries are numbered within the job; `positives` and `seen` hold
   those of all queries, indexed by the offsets. */
typedef struct {
  int64_t n_queries, n_rows, dim, k;
  const float *query; /* [n_queries, dim]; NULL if scores are given */
  const float *table; /* candidates [n_rows, dim], or scores [n_queries, n_rows] */
  int64_t stride;     /* floats from one row of `table` to the next */
  const float *bias;  /* [n_rows]: added to a row's score; NaN if it is not a candidate */
  const int64_t *positive_offsets, *seen_offsets; /* [n_queries + 1] */
  const int32_t *positives, *seen;                /* item rows, below n_rows */
  int64_t *ranks;        /* of each positive */
  int64_t *n_ranked;     /* [n_queries] */
  int32_t *top;          /* [n_queries, k] */
  float *top_scores;     /* [n_queries, k] */
  int32_t *not_a_number; /* [n_queries]: a row whose score is NaN; else unchanged */
} RankJob;

typedef struct {
  const RankJob *job;
  int64_t height;   /* n_queries rounded up to HEIGHT */
  Query *queries;   /* [n_queries] */
  Watch *watches;   /* [height / HEIGHT] */
  float *packed;    /* [height / HEIGHT, dim, HEIGHT]: queries */
  float *panel;     /* [1 + dim, COLS]: bias, and candidates */
  uint64_t *marks;  /* a bit for each item row */
  Positive *positives;
  int32_t *hidden;
  uint64_t *best;   /* [n_queries, k] */
  _Alignas(64) float scores[HEIGHT * WIDTH];
} Sweep;

RECSYS_INLINE int is_candidate(const RankJob *j, int64_t row) {
  return j->bias[row] == j->bias[row];
}

/* ---- Setup: hidden items and positives of each query ---- */

static void mark_seen(Sweep *s, int64_t i) {
  const RankJob *j = s->job;
  for (int64_t at = j->seen_offsets[i]; at < j->seen_offsets[i + 1]; at++) {
    const int32_t row = j->seen[at];
    if (is_candidate(j, row)) s->marks[row / 64] |= (uint64_t)1 << (row % 64);
  }
}

/* Clears the marks, and writes them to `rows` in ascending order. Returns their number. */
static int64_t collect_marks(Sweep *s, int32_t *rows) {
  int64_t n = 0;
  for (int64_t word = 0; word <= s->job->n_rows / 64; word++) {
    for (uint64_t bits = s->marks[word]; bits != 0; bits &= bits - 1) {
      rows[n++] = (int32_t)(word * 64 + __builtin_ctzll(bits));
    }
    s->marks[word] = 0;
  }
  return n;
}

static int by_row(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

static int is_left_out(const Query *q, int32_t row) {
  return q->n_hidden > 0 &&
         bsearch(&row, q->hidden, (size_t)q->n_hidden, sizeof row, by_row) != NULL;
}

/* Positives that are hidden or not candidates rank last. */
static void take_positives(Sweep *s, Query *q, int64_t i) {
  const RankJob *j = s->job;
  for (int64_t at = j->positive_offsets[i]; at < j->positive_offsets[i + 1]; at++) {
    const int32_t row = j->positives[at];
    j->ranks[at] = j->n_ranked[i] + 1;
    if (!is_candidate(j, row) || is_left_out(q, row)) continue;
    q->positives[q->n_positives++] = (Positive){.row = row, .query = i, .index = at};
  }
}

static void take_queries(Sweep *s) {
  const RankJob *j = s->job;
  int64_t n_candidates = 0;
  for (int64_t row = 0; row < j->n_rows; row++) n_candidates += is_candidate(j, row);
  int32_t *hidden = s->hidden;
  Positive *positives = s->positives;
  memset(s->marks, 0, (size_t)(j->n_rows / 64 + 1) * sizeof *s->marks);
  for (int64_t i = 0; i < j->n_queries; i++) {
    Query *q = &s->queries[i];
    *q = (Query){.positives = positives, .hidden = hidden, .best = s->best + i * j->k,
                 .k = j->k, .least = j->k > 0 ? -INFINITY : INFINITY};
    if (j->seen_offsets[i + 1] > j->seen_offsets[i]) {
      mark_seen(s, i);
      q->n_hidden = collect_marks(s, hidden);
    }
    j->n_ranked[i] = n_candidates - q->n_hidden;
    take_positives(s, q, i);
    hidden += q->n_hidden;
    positives += q->n_positives;
  }
}

static int by_score(const void *a, const void *b) {
  const Positive *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? -1 : 1;
  return (x->row < y->row) - (x->row > y->row);
}

/* Requires the scores of the positives. */
static void start_watching(Sweep *s) {
  static const Query padding = {.least = INFINITY};
  for (int64_t i = 0; i < s->height; i++) {
    Query *q = i < s->job->n_queries ? &s->queries[i] : NULL;
    Watch *w = &s->watches[i / HEIGHT];
    if (q != NULL) qsort(q->positives, (size_t)q->n_positives, sizeof *q->positives, by_score);
    watch(q != NULL ? q : &padding, w, i % HEIGHT, 0);
    w->before[i % HEIGHT] = 0;
  }
}

/* ---- Results ---- */

static void write_results(const Sweep *s) {
  const RankJob *j = s->job;
  for (int64_t i = 0; i < j->n_queries; i++) {
    Query *q = &s->queries[i];
    if (q->n_positives > 0) q->positives[0].before = s->watches[i / HEIGHT].before[i % HEIGHT];
    for (const Positive *p = q->positives; p < q->positives + q->n_positives; p++) {
      j->ranks[p->index] = p->before + 1;
    }
    qsort(q->best, (size_t)q->n_best, sizeof *q->best, by_key);
    for (int64_t n = 0; n < j->k; n++) {
      const int is_one = n < q->n_best;
      j->top[i * j->k + n] = is_one ? (int32_t)(uint32_t)q->best[n] : 0;
      j->top_scores[i * j->k + n] = is_one ? score_of(q->best[n]) : -INFINITY;
    }
  }
}

/* ---- Memory ---- */

typedef struct {
  char *start;
  size_t used;
} Arena;

static void *take(Arena *arena, int64_t n, size_t bytes) {
  void *at = arena->start == NULL ? NULL : arena->start + arena->used;
  arena->used += ((size_t)n * bytes + 63) / 64 * 64;
  return at;
}

static void lay_out(Sweep *s, Arena *arena) {
  const RankJob *j = s->job;
  const int64_t n = j->n_queries, is_product = j->query != NULL;
  s->queries = take(arena, n, sizeof *s->queries);
  s->watches = take(arena, s->height / HEIGHT, sizeof *s->watches);
  s->packed = take(arena, is_product * s->height * j->dim, sizeof *s->packed);
  s->panel = take(arena, is_product * (1 + j->dim) * COLS, sizeof *s->panel);
  s->marks = take(arena, j->n_rows / 64 + 1, sizeof *s->marks);
  s->positives = take(arena, j->positive_offsets[n] - j->positive_offsets[0], sizeof(Positive));
  s->hidden = take(arena, j->seen_offsets[n] - j->seen_offsets[0], sizeof *s->hidden);
  s->best = take(arena, n * j->k, sizeof *s->best);
}

#endif  // RECSYS_RANK_JOB_H_
