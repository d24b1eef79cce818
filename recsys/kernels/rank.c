/* Exact ranks and top-k lists over a whole catalogue, without the queries × items matrix.

   Scores are computed in strips of WIDTH items, a panel of COLS items at a time for all queries
   of the job, or read if they are given. While a tile's sums are in registers, the scores that
   rank before a query's lowest positive are counted, and all are compared with its gate: the
   lower of its second positive's score and the k-th best score so far. Only strips with a score
   that reaches the gate are processed further (rank_query.h).

   Rows that are not candidates have the score NaN, which compares false with every number. All
   scores, also of the positives, are computed by the same instructions, so ties are exact.

   This is not an XLA handler: rank_jobs.py passes arrays in place, one job per thread. Nothing
   is copied, padded or compiled, for any size of the catalogue. A query's results don't depend
   on the other queries of its job. */

#include "rank_job.h"

/* ---- Computed scores ---- */

static void pack_queries(Sweep *s) {
  const RankJob *j = s->job;
  for (int64_t i = 0; i < s->height; i++) {
    float *to = s->packed + i / HEIGHT * HEIGHT * j->dim + i % HEIGHT;
    for (int64_t d = 0; d < j->dim; d++) {
      to[d * HEIGHT] = i < j->n_queries ? j->query[i * j->dim + d] : 0;
    }
  }
}

/* Fills column `c` of the panel with `row`; returns whether it is a candidate. */
static int fill_column(Sweep *s, int64_t c, int64_t row) {
  const RankJob *j = s->job;
  const int is_one = row < j->n_rows && is_candidate(j, row);
  const float *from = j->table + row * j->stride;
  float *to = s->panel + c;
  to[0] = is_one ? j->bias[row] : NAN;
  for (int64_t d = 0; d < j->dim; d++) to[(1 + d) * COLS] = is_one ? from[d] : 0;
  return is_one;
}

/* Returns a bit for each query of the tile whose strip, which ends at `end`, must be processed.
   If there is one, writes the tile's `scores` [HEIGHT, WIDTH]. */
static __attribute__((noinline)) unsigned score_tile(const float *query, int64_t dim,
                                                     const float *panel, Watch *watch,
                                                     int64_t end, float *scores) {
  Lanes sums[SUMS];
  UNROLL for (int i = 0; i < SUMS; i++) sums[i] = load(panel + i % VECTORS * LANES);
  multiply(HEIGHT, VECTORS, sums, query, 1, HEIGHT, panel + COLS, COLS, dim);
  unsigned open = 0;
  UNROLL for (int m = 0; m < HEIGHT; m++) open |= look(sums + m * VECTORS, watch, m, end) << m;
  if (open == 0) return 0;
  UNROLL for (int i = 0; i < SUMS; i++) store(scores + i * LANES, sums[i]);
  return open;
}

/* Scores positives `from` … `to`, at most WIDTH, of the queries of tile `t`. */
static void score_positives(Sweep *s, int64_t t, Positive *from, Positive *to) {
  Watch always = {0}; /* An event at row 0 makes every strip be processed. */
  for (Positive *p = from; p < to; p++) fill_column(s, p - from, p->row);
  for (int64_t c = to - from; c < WIDTH; c++) fill_column(s, c, s->job->n_rows);
  score_tile(s->packed + t * HEIGHT * s->job->dim, s->job->dim, s->panel, &always, WIDTH,
             s->scores);
  for (Positive *p = from; p < to; p++) {
    p->score = s->scores[p->query % HEIGHT * WIDTH + (p - from)];
  }
}

static void score_all_positives(Sweep *s) {
  for (int64_t start = 0; start < s->job->n_queries; start += HEIGHT) {
    const int64_t end = start + HEIGHT < s->job->n_queries ? start + HEIGHT : s->job->n_queries;
    Positive *stop = s->queries[end - 1].positives + s->queries[end - 1].n_positives;
    for (Positive *p = s->queries[start].positives; p < stop; p += WIDTH) {
      score_positives(s, start / HEIGHT, p, stop - p > WIDTH ? p + WIDTH : stop);
    }
  }
}

static void sweep_panel(Sweep *s, int64_t start) {
  for (int64_t c = 0; c < COLS; c += WIDTH) {
    for (int64_t i = 0; i < s->height; i += HEIGHT) {
      Watch *w = &s->watches[i / HEIGHT];
      unsigned open = score_tile(s->packed + i * s->job->dim, s->job->dim, s->panel + c, w,
                                 start + c + WIDTH, s->scores);
      for (; open != 0; open &= open - 1) {
        const int m = __builtin_ctz(open);
        take_strip(&s->queries[i + m], w, m, s->scores + m * WIDTH, start + c);
      }
    }
  }
}

static void sweep_products(Sweep *s) {
  pack_queries(s);
  score_all_positives(s);
  start_watching(s);
  for (int64_t start = 0; start < s->job->n_rows; start += COLS) {
    int n = 0;
    for (int64_t c = 0; c < COLS; c++) n += fill_column(s, c, start + c);
    if (n > 0) sweep_panel(s, start);
  }
}

/* ---- Given scores ---- */

static void find_not_a_number(const Sweep *s, int64_t i, const float *given, int64_t start) {
  for (int64_t row = start; row < start + WIDTH && row < s->job->n_rows; row++) {
    if (is_candidate(s->job, row) && given[row] != given[row]) {
      s->job->not_a_number[i] = (int32_t)row;
    }
  }
}

static void read_strip(Sweep *s, const float *given, int64_t start) {
  const float *bias = s->job->bias + start;
  const int64_t left = s->job->n_rows - start, n = left < WIDTH ? left : WIDTH;
  for (int64_t c = 0; c < n; c++) s->scores[c] = given[start + c] + bias[c];
  for (int64_t c = n; c < WIDTH; c++) s->scores[c] = NAN;
}

static void sweep_row(Sweep *s, int64_t i) {
  const float *given = s->job->table + i * s->job->stride;
  Watch *w = &s->watches[i / HEIGHT];
  const int m = (int)(i % HEIGHT);
  for (int64_t start = 0; start < s->job->n_rows; start += WIDTH) {
    read_strip(s, given, start);
    Lanes strip[VECTORS];
    uint64_t numbers = 0;
    UNROLL for (int v = 0; v < VECTORS; v++) {
      strip[v] = load(s->scores + v * LANES);
      numbers |= not_below(strip[v], strip[v]) << (v * LANES);
    }
    if (numbers != ((uint64_t)1 << WIDTH) - 1) find_not_a_number(s, i, given, start);
    if (look(strip, w, m, start + WIDTH)) take_strip(&s->queries[i], w, m, s->scores, start);
  }
}

static void sweep_given(Sweep *s) {
  const RankJob *j = s->job;
  for (int64_t i = 0; i < j->n_queries; i++) {
    Query *q = &s->queries[i];
    for (Positive *p = q->positives; p < q->positives + q->n_positives; p++) {
      p->score = j->table[i * j->stride + p->row] + j->bias[p->row];
    }
  }
  start_watching(s);
  for (int64_t i = 0; i < j->n_queries; i++) sweep_row(s, i);
}

/* ---- The job ---- */

/* Ranks the positives of a job's queries. Returns 0, or 1 if there is no memory. */
RECSYS_EXPORT int recsys_rank(const RankJob *job) {
  Sweep s = {.job = job, .height = (job->n_queries + HEIGHT - 1) / HEIGHT * HEIGHT};
  Arena arena = {0};
  lay_out(&s, &arena);
  arena.start = recsys_scratch_take(arena.used);
  if (arena.start == NULL) return 1;
  arena.used = 0;
  lay_out(&s, &arena);
  take_queries(&s);
  if (job->query != NULL) {
    sweep_products(&s);
  } else {
    sweep_given(&s);
  }
  write_results(&s);
  recsys_scratch_give(arena.start);
  return 0;
}

/* Five rows: the first is not an item, the second is hidden, the last two have equal scores. */
RECSYS_SELF_CHECK(rank) {
  const float query[1] = {2}, table[5] = {9, 8, 1, 3, 3}, bias[5] = {NAN, 0, 0, 0, 0};
  const int64_t positive_offsets[2] = {0, 2}, seen_offsets[2] = {0, 1};
  const int32_t positives[2] = {2, 4}, seen[1] = {1};
  int64_t ranks[2], n_ranked;
  int32_t top[2], not_a_number = -1;
  float top_scores[2];
  const RankJob job = {.n_queries = 1, .n_rows = 5, .dim = 1, .k = 2, .query = query,
                       .table = table, .stride = 1, .bias = bias,
                       .positive_offsets = positive_offsets, .seen_offsets = seen_offsets,
                       .positives = positives, .seen = seen, .ranks = ranks,
                       .n_ranked = &n_ranked, .top = top, .top_scores = top_scores,
                       .not_a_number = &not_a_number};
  if (recsys_rank(&job) != 0 || n_ranked != 3 || ranks[0] != 3 || ranks[1] != 2) return 1;
  return !(top[0] == 3 && top[1] == 4 && top_scores[1] == 6);
}
