/* Exact top-k by approximate int8 scores of all items, and exact scores of few.

   Items and queries are rounded to int8. The product of the rounded vectors gives the score
   within a guaranteed margin: by the Cauchy-Schwarz inequality at most |query| · |item - rounded
   item| + |query - rounded query| · |rounded item|, plus rounding errors of floats. An item of
   the top k must be able to reach a score that at least k items surely reach. So the top k are
   among the few items that can, whose exact scores are then computed as in rank.c, bitwise
   equal.

   Each panel of items has rows from the whole catalogue, so the panels seen so far are a fair
   sample that predicts the k-th best score. Items must reach that prediction, which is too high
   for one query in millions; the end of a job checks that k items did.

   A query is given up if the prediction was too high, if too many items have similar scores, or
   if numbers are too large or too small for the bounds; the caller ranks it by rank.c. */

#include "rank_job.h"
#include "rank_rough.h"

int recsys_rank(const RankJob *job);

enum {
  MOST_DIM = 1024,      /* sums of products are exact as floats */
  AT_LEAST = 32,        /* items that are added at least before pruning */
  CAPACITY = 8,         /* kept items: a multiple of k, */
  MORE_CAPACITY = 512,  /* plus a constant */
  DEVIATIONS = 5,       /* safety margin of the prediction [standard deviations] */
};

/* Items and queries beyond these aren't rounded, so no bound overflows or vanishes. */
static const double HIGHEST = 1e15, LOWEST_STEP = 1e-15, LOWEST_QUERY = 1e-12;

/* Mirrored by rank_jobs.py, which orders the rows: see row_of. */
typedef struct {
  int64_t n_rows, dim;
  int64_t leap;       /* coprime to the number of panels */
  const float *table; /* [n_rows, dim] */
  int64_t stride;     /* floats from one row of `table` to the next */
  uint8_t *bytes;     /* [panels, ceil(dim / GROUP), PANEL_ROWS, GROUP] */
  float *steps;       /* [panels * PANEL_ROWS]: steps per unit; NaN if not an item */
  float *missed;      /* [panels]: largest rounding error of an item [its steps] */
  float *length;      /* [panels]: largest length of a rounded item [its steps] */
} RoundedItems;

/* Queries are numbered within the job; `seen` holds the items of all queries, by offsets. */
typedef struct {
  int64_t n_queries, k;
  const float *query;          /* [n_queries, dim] */
  const float *steps;          /* [panels * PANEL_ROWS]: as RoundedItems, NaN if masked */
  const int64_t *seen_offsets; /* [n_queries + 1] */
  const int32_t *seen;         /* item rows, below n_rows */
  int32_t *top;                /* [n_queries, k] */
  float *top_scores;           /* [n_queries, k] */
  uint8_t *is_given_up;        /* [n_queries] */
} TopJob;

RECSYS_INLINE int64_t groups_of(int64_t dim) { return (dim + GROUP - 1) / GROUP; }
RECSYS_INLINE int64_t panels_of(int64_t n_rows) { return (n_rows + PANEL_ROWS - 1) / PANEL_ROWS; }

/* Returns the item row of a column of a panel. Neighbouring rows, which may be similar, are far
   from each other here. */
RECSYS_INLINE int64_t row_of(const RoundedItems *r, int64_t panel, int64_t column) {
  const int64_t panels = panels_of(r->n_rows);
  return column * panels + panel * r->leap % panels;
}

/* ---- Rounding ---- */

static double largest_of(const float *x, int64_t dim) {
  double largest = 0;
  for (int64_t d = 0; d < dim; d++) {
    const double size = fabs((double)x[d]);
    if (!(size <= largest)) largest = size; /* Also for NaN. */
    if (largest != largest) return largest;
  }
  return largest;
}

/* Rounds `x` to an integer in -largest … largest. */
RECSYS_INLINE int32_t whole(double x, int32_t largest) {
  const int32_t n = (int32_t)rint(x);
  return n > largest ? largest : n < -largest ? -largest : n;
}

/* Rounds an item, and updates its panel's bounds. Returns 0 if it can't be rounded. */
static int round_item(const RoundedItems *r, int64_t panel, int64_t column) {
  const int64_t groups = groups_of(r->dim);
  const float *x = r->table + row_of(r, panel, column) * r->stride;
  uint8_t *to = r->bytes + (panel * groups * PANEL_ROWS + column) * GROUP;
  const double largest = largest_of(x, r->dim);
  if (!(largest <= HIGHEST)) return 0;
  const double step = largest / LARGEST > LOWEST_STEP ? largest / LARGEST : LOWEST_STEP;
  const float steps = (float)(1 / step);
  double missed = 0, length = 0, whole_length = 0;
  for (int64_t d = 0; d < r->dim; d++) {
    const int32_t n = whole((double)x[d] * steps, LARGEST);
    const double miss = (double)x[d] * steps - n;
    to[d / GROUP * PANEL_ROWS * GROUP + d % GROUP] = (uint8_t)(n + OFFSET);
    missed += miss * miss;
    length += (double)x[d] * steps * ((double)x[d] * steps);
    whole_length += (double)n * n;
  }
  /* An exact score is a sum of floats, each rounded, and each product may be. */
  const double rounding = (double)r->dim * 0x1p-23 * 1.01;
  const float most = (float)((sqrt(missed) + rounding * sqrt(length)) * 1.000001);
  const float longest = (float)(sqrt(whole_length) * 1.000001);
  r->steps[panel * PANEL_ROWS + column] = steps;
  if (most > r->missed[panel]) r->missed[panel] = most;
  if (longest > r->length[panel]) r->length[panel] = longest;
  return 1;
}

/* Rounds the items whose `steps` aren't NaN. Returns 0, or 1 if one can't be rounded. */
RECSYS_EXPORT int recsys_round_items(const RoundedItems *r) {
  if (r->dim < 1 || r->dim > MOST_DIM) return 1;
  const int64_t panels = panels_of(r->n_rows);
  memset(r->bytes, OFFSET, (size_t)(panels * groups_of(r->dim) * PANEL_ROWS * GROUP));
  memset(r->missed, 0, (size_t)panels * sizeof *r->missed);
  memset(r->length, 0, (size_t)panels * sizeof *r->length);
  for (int64_t i = 0; i < panels * PANEL_ROWS; i++) {
    const int is_item = r->steps[i] == r->steps[i];
    if (is_item && !round_item(r, i / PANEL_ROWS, i % PANEL_ROWS)) return 1;
  }
  return 0;
}

/* Returns whether int8 products are faster than float products on this processor. */
RECSYS_EXPORT int recsys_top_is_fast(void) { return IS_FAST; }

/* ---- A job ---- */

typedef struct {
  const RoundedItems *items;
  const TopJob *job;
  int64_t tall, height; /* queries of a tile; n_queries rounded up to it */
  int64_t capacity;     /* of kept items of a query */
  int32_t slack;        /* added to margins for rounding errors in their computation */
  Rough *queries;       /* [n_queries] */
  int32_t *packed;      /* [height / tall, groups, tall] */
  int32_t *correction;  /* [height]: minus the contribution of the items' offset */
  double *steps;        /* [height]: steps per unit of the query */
  float *missed;        /* [height]: length of the query [its steps] */
  float *length;        /* [height]: length of its rounding error [its steps] */
  float *least;         /* [height]: score that an item must reach [the query's steps] */
  int32_t *lower, *row; /* [n_queries, capacity] */
  float *upper;         /* [n_queries, capacity] */
  int32_t *hidden;
  uint64_t *keys, *sorted; /* [capacity] */
  IntLanes sums[TALL * ACROSS];
  int32_t margin[TALL];
  uint64_t found[TALL];
} Look;

/* Rounds query `i`. Returns 0 if it can't be rounded. */
static int round_query(Look *s, int64_t i) {
  const int64_t dim = s->items->dim, groups = groups_of(dim);
  const float *x = s->job->query + i * dim;
  int32_t *to = s->packed + (i / s->tall * groups * s->tall + i % s->tall);
  const double largest = largest_of(x, dim);
  if (!(largest <= HIGHEST) || largest < LOWEST_QUERY) return 0;
  const double steps = LARGEST_OF_QUERY / largest;
  double missed = 0, length = 0;
  int32_t sum = 0;
  for (int64_t d = 0; d < dim; d++) {
    const int32_t n = whole((double)x[d] * steps, LARGEST_OF_QUERY);
    const double miss = (double)x[d] * steps - n;
    to[d / GROUP * s->tall] |= (int32_t)((uint32_t)(uint8_t)n << d % GROUP * 8);
    missed += miss * miss;
    length += (double)x[d] * steps * ((double)x[d] * steps);
    sum += n;
  }
  s->correction[i] = -OFFSET * sum;
  s->steps[i] = steps;
  s->missed[i] = (float)(sqrt(length) * 1.000001);
  s->length[i] = (float)(sqrt(missed) * 1.000001);
  return 1;
}

static void give_up(Look *s, int64_t i) {
  s->queries[i].is_given_up = 1;
  s->queries[i].n = 0;
  s->least[i] = INFINITY;
}

static void take_query(Look *s, int64_t i, int32_t *hidden) {
  const TopJob *j = s->job;
  Rough *r = &s->queries[i];
  *r = (Rough){.lower = s->lower + i * s->capacity, .upper = s->upper + i * s->capacity,
               .row = s->row + i * s->capacity, .due = AT_LEAST, .hidden = hidden};
  hide(r, j->seen + j->seen_offsets[i], j->seen_offsets[i + 1] - j->seen_offsets[i]);
  s->least[i] = -INFINITY;
  if (!round_query(s, i)) give_up(s, i);
}

static void take_all_queries(Look *s) {
  const TopJob *j = s->job;
  int32_t *hidden = s->hidden;
  memset(s->packed, 0, (size_t)(s->height * groups_of(s->items->dim)) * sizeof *s->packed);
  for (int64_t i = 0; i < s->height; i++) {
    s->correction[i] = 0;
    s->steps[i] = 1;
    s->missed[i] = s->length[i] = 0;
    s->least[i] = INFINITY; /* For padding. */
    if (i >= j->n_queries) continue;
    take_query(s, i, hidden);
    hidden += s->queries[i].hidden_mask + 1;
  }
}

/* ---- Tiles ---- */

/* Sets the `margin` of `rows` queries: the largest error of a sum of products. */
RECSYS_INLINE void set_margins(Look *s, const int rows, int64_t start, float missed,
                               float length) {
  UNROLL for (int m = 0; m < rows; m++) {
    s->margin[m] = (int32_t)(s->missed[start + m] * missed + s->length[start + m] * length)
                   + s->slack;
  }
}

/* Returns a bit for each query from `start` on for which the strip has an item that may reach
   its `least`. Sets `found`, and `sums` with the margin added. */
RECSYS_INLINE unsigned look_at(Look *s, const int rows, int64_t start, const uint8_t *bytes,
                               const float *steps) {
  const int64_t groups = groups_of(s->items->dim);
  IntLanes sums[TALL * ACROSS];
  UNROLL for (int m = 0; m < rows; m++) {
    UNROLL for (int v = 0; v < ACROSS; v++) {
      sums[m * ACROSS + v] = all_int(s->correction[start + m] + s->margin[m]);
    }
  }
  add_all_products(rows, sums, s->packed + start * groups, bytes, groups);
  unsigned open = 0;
  UNROLL for (int m = 0; m < rows; m++) {
    const Lanes least = all(s->least[start + m]);
    uint64_t found = 0;
    UNROLL for (int v = 0; v < ACROSS; v++) {
      const Lanes needed = least * load(steps + v * LANES);
      found |= not_below(as_floats(sums[m * ACROSS + v]), needed) << (v * LANES);
    }
    s->found[m] = found;
    open |= (unsigned)(found != 0) << m;
  }
  if (open == 0) return 0;
  UNROLL for (int i = 0; i < rows * ACROSS; i++) s->sums[i] = sums[i];
  return open;
}

static __attribute__((noinline)) unsigned look_at_tile(Look *s, int64_t start,
                                                       const uint8_t *bytes, const float *steps) {
  return look_at(s, TALL, start, bytes, steps);
}

static __attribute__((noinline)) unsigned look_at_one(Look *s, int64_t start,
                                                      const uint8_t *bytes, const float *steps) {
  return look_at(s, 1, start, bytes, steps);
}

/* Returns the predicted number of top-k items among those seen so far, plus a safety margin. */
static int64_t predicted(const Look *s, int64_t panel) {
  const double k = (double)s->job->k;
  const double share = (double)(panel + 1) / (double)panels_of(s->items->n_rows);
  const double most = k * share + DEVIATIONS * (sqrt(k * share) + 1) + 1;
  return most < k ? (int64_t)most : s->job->k;
}

/* Prunes the kept items of a query. */
static void prune(Look *s, int64_t i, int64_t panel) {
  Rough *r = &s->queries[i];
  const float least = tighten(r, predicted(s, panel));
  if (least > s->least[i]) s->least[i] = least;
  r->due = r->n + (r->n / 2 > AT_LEAST ? r->n / 2 : AT_LEAST);
  if (r->due > s->capacity - STRIP) r->due = s->capacity - STRIP;
  if (r->n * 4 > s->capacity * 3) give_up(s, i);
}

/* Keeps the items that were found in the strip at `column` of a panel. */
static __attribute__((noinline)) void keep_found(Look *s, int64_t i, int m, int64_t panel,
                                                 int64_t column) {
  Rough *r = &s->queries[i];
  const int32_t *sums = (const int32_t *)(s->sums + m * ACROSS);
  const float *steps = s->items->steps + panel * PANEL_ROWS + column;
  const int64_t first = row_of(s->items, panel, column), panels = panels_of(s->items->n_rows);
  const int32_t twice = 2 * s->margin[m];
  int64_t n = r->n;
  for (uint64_t found = s->found[m]; found != 0; found &= found - 1) {
    const int c = __builtin_ctzll(found);
    const int32_t row = (int32_t)(first + c * panels);
    if (is_hidden(r, row)) continue;
    r->lower[n] = ordered((float)(sums[c] - twice) / steps[c]);
    r->upper[n] = (float)sums[c] / steps[c];
    r->row[n++] = row;
  }
  r->n = n;
  if (n >= r->due) prune(s, i, panel);
}

static void look_at_panel(Look *s, int64_t panel) {
  const RoundedItems *items = s->items;
  const uint8_t *bytes = items->bytes + panel * groups_of(items->dim) * PANEL_ROWS * GROUP;
  const float *steps = s->job->steps + panel * PANEL_ROWS;
  for (int64_t start = 0; start < s->height; start += s->tall) {
    const float missed = items->missed[panel], length = items->length[panel];
    if (s->tall == 1) {
      set_margins(s, 1, start, missed, length);
    } else {
      set_margins(s, TALL, start, missed, length);
    }
    for (int64_t c = 0; c < PANEL_ROWS; c += STRIP) {
      unsigned open = s->tall == 1 ? look_at_one(s, start, bytes + c * GROUP, steps + c)
                                   : look_at_tile(s, start, bytes + c * GROUP, steps + c);
      for (; open != 0; open &= open - 1) {
        const int m = __builtin_ctz(open);
        keep_found(s, start + m, m, panel, c);
      }
    }
  }
}

/* ---- Results, memory ---- */

/* Gives a query up unless `k` items reach the bound that was applied. */
static void check_prediction(Look *s, int64_t i) {
  const Rough *r = &s->queries[i];
  if (s->least[i] == -INFINITY) return; /* Nothing was dropped. */
  if (count_not_below(r->lower, r->n, ordered(s->least[i])) < s->job->k) give_up(s, i);
}

/* Computes exact scores, of k items first: the others must reach those. */
static void score_kept(Look *s, int64_t i) {
  const RoundedItems *items = s->items;
  const int64_t dim = items->dim, k = s->job->k;
  const float *query = s->job->query + i * dim;
  Rough *r = &s->queries[i];
  const int64_t n_sure = put_sure_first(r, tighten(r, k));
  score_rows(query, dim, items->table, items->stride, r, 0, n_sure);
  if (r->n == n_sure) return;
  const double reached = unordered(reached_by(r->lower, n_sure, k)) * s->steps[i];
  drop_below(r, n_sure, (float)(reached - fabs(reached) * 1e-6));
  score_rows(query, dim, items->table, items->stride, r, n_sure, r->n);
}

static void write_best(Look *s, int64_t i) {
  const TopJob *j = s->job;
  Rough *r = &s->queries[i];
  check_prediction(s, i);
  score_kept(s, i);
  const int64_t n_best = sort_best(r, j->k, s->keys, s->sorted);
  for (int64_t n = 0; n < j->k; n++) {
    const int is_one = n < n_best;
    j->top[i * j->k + n] = is_one ? (int32_t)(uint32_t)s->sorted[n] : 0;
    j->top_scores[i * j->k + n] = is_one ? score_of(s->sorted[n]) : -INFINITY;
  }
  j->is_given_up[i] = (uint8_t)r->is_given_up;
}

static void lay_out_look(Look *s, Arena *arena) {
  const int64_t n = s->job->n_queries, groups = groups_of(s->items->dim);
  int64_t n_hidden = 0;
  for (int64_t i = 0; i < n; i++) {
    n_hidden += hidden_slots(s->job->seen_offsets[i + 1] - s->job->seen_offsets[i]);
  }
  s->queries = take(arena, n, sizeof *s->queries);
  s->packed = take(arena, s->height * groups, sizeof *s->packed);
  s->correction = take(arena, s->height, sizeof *s->correction);
  s->steps = take(arena, s->height, sizeof *s->steps);
  s->missed = take(arena, s->height, sizeof *s->missed);
  s->length = take(arena, s->height, sizeof *s->length);
  s->least = take(arena, s->height, sizeof *s->least);
  s->lower = take(arena, n * s->capacity, sizeof *s->lower);
  s->row = take(arena, n * s->capacity, sizeof *s->row);
  s->upper = take(arena, n * s->capacity, sizeof *s->upper);
  s->hidden = take(arena, n_hidden, sizeof *s->hidden);
  s->keys = take(arena, s->capacity, sizeof *s->keys);
  s->sorted = take(arena, s->capacity, sizeof *s->sorted);
}

/* Finds the best items of a job's queries. Returns 0, or 1 if there is no memory. */
RECSYS_EXPORT int recsys_top(const RoundedItems *items, const TopJob *job) {
  Look s = {.items = items, .job = job, .tall = job->n_queries < TALL / 2 ? 1 : TALL};
  s.height = (job->n_queries + s.tall - 1) / s.tall * s.tall;
  s.capacity = CAPACITY * job->k + MORE_CAPACITY;
  s.slack = (int32_t)(4 + (items->dim * LARGEST * LARGEST_OF_QUERY >> 21));
  Arena arena = {0};
  lay_out_look(&s, &arena);
  arena.start = recsys_scratch_take(arena.used);
  if (arena.start == NULL) return 1;
  arena.used = 0;
  lay_out_look(&s, &arena);
  take_all_queries(&s);
  for (int64_t panel = 0; panel < panels_of(items->n_rows); panel++) look_at_panel(&s, panel);
  for (int64_t i = 0; i < job->n_queries; i++) write_best(&s, i);
  recsys_scratch_give(arena.start);
  return 0;
}

/* Five rows: the first is not an item, the second is hidden, the last two have equal scores.
   Scores must equal those of rank.c, for any compiler. */
RECSYS_SELF_CHECK(rank_top) {
  const float query[3] = {2.1f, 0.3f, 0.7f};
  const float table[15] = {9, 9, 9, 8, 8, 8, 1.1f, 0.1f, 0.3f, 3.3f, 1.7f, 0.9f, 3.3f, 1.7f, 0.9f};
  const float bias[5] = {NAN, 0, 0, 0, 0};
  const int64_t none[2] = {0, 0}, seen_offsets[2] = {0, 1};
  const int32_t seen[1] = {1};
  uint8_t bytes[PANEL_ROWS * GROUP], is_given_up;
  float steps[PANEL_ROWS], missed, length, scores[3], expected_scores[3];
  int32_t top[3], expected[3], not_a_number;
  int64_t n_ranked;
  for (int64_t i = 0; i < PANEL_ROWS; i++) steps[i] = i >= 1 && i < 5 ? 0 : NAN;
  const RoundedItems items = {.n_rows = 5, .dim = 3, .leap = 1, .table = table, .stride = 3,
                              .bytes = bytes, .steps = steps, .missed = &missed,
                              .length = &length};
  const TopJob job = {.n_queries = 1, .k = 3, .query = query, .steps = steps,
                      .seen_offsets = seen_offsets, .seen = seen, .top = top,
                      .top_scores = scores, .is_given_up = &is_given_up};
  const RankJob other = {.n_queries = 1, .n_rows = 5, .dim = 3, .k = 3, .query = query,
                         .table = table, .stride = 3, .bias = bias, .positive_offsets = none,
                         .seen_offsets = seen_offsets, .seen = seen, .n_ranked = &n_ranked,
                         .top = expected, .top_scores = expected_scores,
                         .not_a_number = &not_a_number};
  if (recsys_round_items(&items) != 0 || recsys_top(&items, &job) != 0 || is_given_up) return 1;
  if (recsys_rank(&other) != 0 || memcmp(scores, expected_scores, sizeof scores) != 0) return 1;
  return !(top[0] == 3 && top[1] == 4 && top[2] == 2);
}
