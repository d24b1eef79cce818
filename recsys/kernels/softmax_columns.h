/* The distinct items among candidates: each has one column, that of its first place.

   A hash table with open addressing finds the column of an item; it is built once a call,
   in the order of the places, so columns are in the order of their first places. */

#ifndef RECSYS_SOFTMAX_COLUMNS_H_
#define RECSYS_SOFTMAX_COLUMNS_H_

#include <stdint.h>
#include <string.h>

typedef struct {
  int64_t n_places, n_columns, n_slots; /* slots: a power of 2, twice the places or more */
  const int32_t *item_row;              /* [n_places] */
  int32_t *column;                      /* [n_places]: that of the place's item */
  int32_t *place;                       /* [n_columns]: the first one of the column's item */
  int32_t *slots;                       /* [n_slots]: a column, or -1 */
} Columns;

static inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

/* Returns the slot that holds the item's column, or the free one where it belongs. */
static inline int32_t *slot_of(const Columns *c, int32_t item) {
  int64_t at = mixed((uint32_t)item) & (c->n_slots - 1);
  while (c->slots[at] >= 0 && c->item_row[c->place[c->slots[at]]] != item) {
    at = (at + 1) & (c->n_slots - 1);
  }
  return c->slots + at;
}

/* Returns the column of an item; -1 if it is none of the candidates'. */
static inline int64_t column_of(const Columns *c, int32_t item) { return *slot_of(c, item); }

/* Returns whether a place is the first one of its item. */
static inline int is_column(const Columns *c, int64_t place) {
  return c->place[c->column[place]] == place;
}

static inline int64_t count_slots(int64_t n_places) {
  int64_t n = 16;
  while (n < 2 * n_places) n *= 2;
  return n;
}

static void number_columns(Columns *c) {
  memset(c->slots, 0xFF, (size_t)c->n_slots * sizeof *c->slots);
  c->n_columns = 0;
  for (int64_t j = 0; j < c->n_places; j++) {
    int32_t *slot = slot_of(c, c->item_row[j]);
    if (*slot < 0) {
      c->place[c->n_columns] = (int32_t)j;
      *slot = (int32_t)c->n_columns++;
    }
    c->column[j] = *slot;
  }
}

#endif  // RECSYS_SOFTMAX_COLUMNS_H_
