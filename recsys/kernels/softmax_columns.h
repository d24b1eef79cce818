/* The unique items among candidates: each has one column, in the order of first positions.

   A hash table with open addressing finds the column of an item; it is built once per call. */

#ifndef RECSYS_SOFTMAX_COLUMNS_H_
#define RECSYS_SOFTMAX_COLUMNS_H_

#include <stdint.h>
#include <string.h>

typedef struct {
  int64_t n_positions, n_columns, n_slots; /* n_slots: a power of 2, at least 2 n_positions */
  const int32_t *item_row;                 /* [n_positions] */
  int32_t *column;                         /* [n_positions]: column of the position's item */
  int32_t *first;                          /* [n_columns]: first position of the item */
  int32_t *slots;                          /* [n_slots]: a column, or -1 */
} Columns;

static inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

/* Returns the slot of the item's column, or the free slot for it. */
static inline int32_t *slot_of(const Columns *c, int32_t item) {
  int64_t at = mixed((uint32_t)item) & (c->n_slots - 1);
  while (c->slots[at] >= 0 && c->item_row[c->first[c->slots[at]]] != item) {
    at = (at + 1) & (c->n_slots - 1);
  }
  return c->slots + at;
}

/* Returns the column of an item; -1 if it is not a candidate. */
static inline int64_t column_of(const Columns *c, int32_t item) { return *slot_of(c, item); }

/* Returns whether a position is the first of its item. */
static inline int is_column(const Columns *c, int64_t position) {
  return c->first[c->column[position]] == position;
}

static inline int64_t count_slots(int64_t n_positions) {
  int64_t n = 16;
  while (n < 2 * n_positions) n *= 2;
  return n;
}

static void number_columns(Columns *c) {
  memset(c->slots, 0xFF, (size_t)c->n_slots * sizeof *c->slots);
  c->n_columns = 0;
  for (int64_t j = 0; j < c->n_positions; j++) {
    int32_t *slot = slot_of(c, c->item_row[j]);
    if (*slot < 0) {
      c->first[c->n_columns] = (int32_t)j;
      *slot = (int32_t)c->n_columns++;
    }
    c->column[j] = *slot;
  }
}

#endif  // RECSYS_SOFTMAX_COLUMNS_H_
