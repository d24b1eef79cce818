/* The best items of queries by a rough look at all of them, and an exact one at few.

   Items and queries are rounded to whole numbers of 8 bits. A query's products with an
   item then give its score within a margin that is known for sure: by the inequality of
   Cauchy and Schwarz no more than |query| · |item - rounded item| + |query - rounded
   query| · |rounded item|, and what floats round. What at least k items reach for sure,
   an item must be able to reach to be among the best k: so all of the best are among
   those few, whose scores are then made as rank.c makes them, to the last bit.

   Each panel of items has rows from all over the catalogue: so the panels that were
   looked at are a fair sample, and tell what the best of all will reach. Items must reach
   that guess, which is below what the k-th best reaches but for one query in millions;
   whether k items did is seen at the end.

   A query is given up where the guess was too high, where too many items are too alike
   for such a look, and where numbers are too large or too small for its bounds; who asks
   ranks it by rank.c. */

#include "rank_job.h"
#include "rank_rough.h"

int recsys_rank(const RankJob *job);

enum {
  MOST_DIM = 1024, /* Sums of products are exact as floats. */
  AT_LEAST = 32,   /* So many more items are kept before all are looked through. */
  ROOM = 8,        /* Most that are kept, as a multiple of k, */
  MORE_ROOM = 512, /* and so many more. */
  DEVIATIONS = 5,  /* By which a guess is on the safe side. */
};

/* Beyond these an item or a query isn't rounded; no bound overflows or vanishes. */
static const double HIGHEST = 1e15, LOWEST_STEP = 1e-15, LOWEST_QUERY = 1e-12;

/* Mirrored by rank_top.py, which lays out the rows: see row_of. */
typedef struct {
  int64_t n_rows, dim;
  int64_t leap;       /* without a common divisor with the number of panels */
  const float *table; /* [n_rows, dim] */
  int64_t stride;     /* floats from one row of `table` to the next */
  uint8_t *bytes;     /* [panels, ceil(dim / GROUP), PANEL_ROWS, GROUP] */
  float *steps;       /* [panels * PANEL_ROWS]: steps to one; NaN: no item */
  float *missed;      /* [panels]: most that rounding took of an item, in its steps, and */
  float *length;      /* [panels]: the greatest length of a rounded item, likewise */
} RoundedItems;

/* Queries are numbered within the job, seen items within all: the offsets say where. */
typedef struct {
  int64_t n_queries, k;
  const float *query;          /* [n_queries, dim] */
  const float *steps;          /* [panels * PANEL_ROWS]: as in RoundedItems, or more NaN */
  const int64_t *seen_offsets; /* [n_queries + 1] */
  const int32_t *seen;         /* item rows, below n_rows */
  int32_t *top;                /* [n_queries, k] */
  float *top_scores;           /* [n_queries, k] */
  uint8_t *is_given_up;        /* [n_queries] */
} TopJob;

RECSYS_INLINE int64_t groups_of(int64_t dim) { return (dim + GROUP - 1) / GROUP; }
RECSYS_INLINE int64_t panels_of(int64_t n_rows) { return (n_rows + PANEL_ROWS - 1) / PANEL_ROWS; }

/* Returns the item row of a column of a panel: rows that are near each other, which may be
   alike, are far from each other here. */
RECSYS_INLINE int64_t row_of(const RoundedItems *r, int64_t panel, int64_t column) {
  const int64_t panels = panels_of(r->n_rows);
  return column * panels + panel * r->leap % panels;
}

/* ---- Rounding ---- */

static double largest_of(const float *x, int64_t dim) {
  double largest = 0;
  for (int64_t d = 0; d < dim; d++) {
    const double size = fabs((double)x[d]);
    if (!(size <= largest)) largest = size; /* A NaN comes through. */
    if (largest != largest) return largest;
  }
  return largest;
}

/* Rounds `x` and returns a whole number of at most `largest`. */
RECSYS_INLINE int32_t whole(double x, int32_t largest) {
  const int32_t n = (int32_t)rint(x);
  return n > largest ? largest : n < -largest ? -largest : n;
}

/* Rounds an item; raises what its panel says of its items. Returns whether it can be. */
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

/* Rounds the items whose `steps` aren't NaN. Returns 0, or 1 if one can't be. */
RECSYS_EXPORT int recsys_round_items(const RoundedItems *r) {
  if (r->dim < 1 || r->dim > MOST_DIM) return 1;
  const int64_t panels = panels_of(r->n_rows);
  memset(r->bytes, OFFSET, (size_t)(panels * groups_of(r->dim) * PANEL_ROWS * GROUP));
  memset(r->missed, 0, (size_t)panels * sizeof *r->missed);
  memset(r->length, 0, (size_t)panels * sizeof *r->length);
  for (int64_t place = 0; place < panels * PANEL_ROWS; place++) {
    const int is_item = r->steps[place] == r->steps[place];
    if (is_item && !round_item(r, place / PANEL_ROWS, place % PANEL_ROWS)) return 1;
  }
  return 0;
}

/* Returns whether this processor looks at bytes faster than at floats. */
RECSYS_EXPORT int recsys_top_is_fast(void) { return IS_FAST; }

/* ---- A job ---- */

typedef struct {
  const RoundedItems *items;
  const TopJob *job;
  int64_t tall, height; /* queries of a tile; n_queries rounded up to it */
  int64_t room;         /* of what a query keeps */
  int32_t slack;        /* of bounds, for what is rounded while they are made */
  Rough *queries;       /* [n_queries] */
  int32_t *packed;      /* [height / tall, groups, tall] */
  int32_t *correction;  /* [height]: what the offset of the items adds, negative */
  double *steps;        /* [height]: of the query, to one */
  float *missed;        /* [height]: length of the query, in its steps, */
  float *length;        /* [height]: and of what rounding took of it */
  float *least;         /* [height]: that an item must reach, in the query's steps */
  int32_t *lower, *row; /* [n_queries, room] */
  float *upper;         /* [n_queries, room] */
  int32_t *hidden;
  uint64_t *keys, *sorted; /* [room] */
  IntLanes sums[TALL * ACROSS];
  int32_t margin[TALL];
  uint64_t found[TALL];
} Look;

/* Rounds query `i`. Returns whether it can be. */
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
  *r = (Rough){.lower = s->lower + i * s->room, .upper = s->upper + i * s->room,
               .row = s->row + i * s->room, .due = AT_LEAST, .hidden = hidden};
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
    s->least[i] = INFINITY; /* Nobody's. */
    if (i >= j->n_queries) continue;
    take_query(s, i, hidden);
    hidden += s->queries[i].hidden_mask + 1;
  }
}

/* ---- Tiles ---- */

/* Sets `margin` of `rows` queries: by how much a sum of products may miss an item's score. */
RECSYS_INLINE void set_margins(Look *s, const int rows, int64_t start, float missed,
                               float length) {
  UNROLL for (int m = 0; m < rows; m++) {
    s->margin[m] = (int32_t)(s->missed[start + m] * missed + s->length[start + m] * length)
                   + s->slack;
  }
}

/* Returns a bit for each of the queries from `start` on for which a strip has an item that
   may reach its least; `found` and `sums`, the margin added, get those of all. */
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

/* Returns how many of the items so far surely reach what the `k` best of all do: as many
   of these as should be among them, and some more. */
static int64_t guessed(const Look *s, int64_t panel) {
  const double k = (double)s->job->k;
  const double share = (double)(panel + 1) / (double)panels_of(s->items->n_rows);
  const double most = k * share + DEVIATIONS * (sqrt(k * share) + 1) + 1;
  return most < k ? (int64_t)most : s->job->k;
}

/* Looks through what is kept of a query, after some panels. */
static void look_through(Look *s, int64_t i, int64_t panel) {
  Rough *r = &s->queries[i];
  const float least = tighten(r, guessed(s, panel));
  if (least > s->least[i]) s->least[i] = least;
  r->due = r->n + (r->n / 2 > AT_LEAST ? r->n / 2 : AT_LEAST);
  if (r->due > s->room - STRIP) r->due = s->room - STRIP;
  if (r->n * 4 > s->room * 3) give_up(s, i);
}

/* Keeps the items that were found in a strip, `column` of a panel. */
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
  if (n >= r->due) look_through(s, i, panel);
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

/* Gives a query up unless `k` items reach what all that are kept had to. */
static void check_guess(Look *s, int64_t i) {
  const Rough *r = &s->queries[i];
  if (s->least[i] == -INFINITY) return; /* Nothing was dropped. */
  if (count_not_below(r->lower, r->n, ordered(s->least[i])) < s->job->k) give_up(s, i);
}

/* Makes exact scores: of k items first, which the others have to reach then. */
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
  check_guess(s, i);
  score_kept(s, i);
  const int64_t n_best = sort_best(r, j->k, s->keys, s->sorted);
  for (int64_t n = 0; n < j->k; n++) {
    const int is_one = n < n_best;
    j->top[i * j->k + n] = is_one ? (int32_t)(uint32_t)s->sorted[n] : 0;
    j->top_scores[i * j->k + n] = is_one ? score_of(s->sorted[n]) : -INFINITY;
  }
  j->is_given_up[i] = (uint8_t)r->is_given_up;
}

typedef struct {
  char *start;
  size_t used;
} Room;

static void *part(Room *room, int64_t n, size_t bytes) {
  void *at = room->start == NULL ? NULL : room->start + room->used;
  room->used += ((size_t)n * bytes + 63) / 64 * 64;
  return at;
}

static void lay_out_look(Look *s, Room *room) {
  const int64_t n = s->job->n_queries, groups = groups_of(s->items->dim);
  int64_t n_hidden = 0;
  for (int64_t i = 0; i < n; i++) {
    n_hidden += hidden_room(s->job->seen_offsets[i + 1] - s->job->seen_offsets[i]);
  }
  s->queries = part(room, n, sizeof *s->queries);
  s->packed = part(room, s->height * groups, sizeof *s->packed);
  s->correction = part(room, s->height, sizeof *s->correction);
  s->steps = part(room, s->height, sizeof *s->steps);
  s->missed = part(room, s->height, sizeof *s->missed);
  s->length = part(room, s->height, sizeof *s->length);
  s->least = part(room, s->height, sizeof *s->least);
  s->lower = part(room, n * s->room, sizeof *s->lower);
  s->row = part(room, n * s->room, sizeof *s->row);
  s->upper = part(room, n * s->room, sizeof *s->upper);
  s->hidden = part(room, n_hidden, sizeof *s->hidden);
  s->keys = part(room, s->room, sizeof *s->keys);
  s->sorted = part(room, s->room, sizeof *s->sorted);
}

/* Finds the best items of a job's queries. Returns 0, or 1 if there is no memory. */
RECSYS_EXPORT int recsys_top(const RoundedItems *items, const TopJob *job) {
  Look s = {.items = items, .job = job, .tall = job->n_queries < TALL / 2 ? 1 : TALL};
  s.height = (job->n_queries + s.tall - 1) / s.tall * s.tall;
  s.room = ROOM * job->k + MORE_ROOM;
  s.slack = (int32_t)(4 + (items->dim * LARGEST * LARGEST_OF_QUERY >> 21));
  Room room = {0};
  lay_out_look(&s, &room);
  room.start = recsys_scratch_take(room.used);
  if (room.start == NULL) return 1;
  room.used = 0;
  lay_out_look(&s, &room);
  take_all_queries(&s);
  for (int64_t panel = 0; panel < panels_of(items->n_rows); panel++) look_at_panel(&s, panel);
  for (int64_t i = 0; i < job->n_queries; i++) write_best(&s, i);
  recsys_scratch_give(room.start);
  return 0;
}

/* Of five items the first is none, the second is hidden, and the last two are equal; scores
   are those of rank.c, whatever a compiler made of either. */
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
