/* A lookup list: row, bag and weight of each entry. */

#ifndef RECSYS_LOOKUPS_H_
#define RECSYS_LOOKUPS_H_

#include "call.h"

/* Entries [n]. An entry whose row or bag is out of range is skipped. */
typedef struct {
  const int32_t *rows;
  const int32_t *bag;   /* NULL: bags of `per_bag` entries, one after the other */
  const float *weight;  /* NULL: 1 */
  int64_t n;
  int64_t n_rows;
  int64_t n_bags;
  int64_t per_bag;
} Lookups;

/* Returns the list in arguments `first`, `first` + 1 and `first` + 2 of `frame`; empty arrays
   of bags or weights mean NULL. */
RECSYS_INLINE Lookups lookups_of(const XLA_FFI_CallFrame *frame, int64_t first, int64_t n_rows,
                                 int64_t n_bags) {
  const XLA_FFI_Buffer *rows = recsys_arg(frame, first), *bag = recsys_arg(frame, first + 1),
                       *weight = recsys_arg(frame, first + 2);
  int64_t n = recsys_dim(rows, 0);
  return (Lookups){
      .rows = rows->data,
      .bag = recsys_dim(bag, 0) > 0 ? bag->data : NULL,
      .weight = recsys_dim(weight, 0) > 0 ? weight->data : NULL,
      .n = n_bags > 0 ? n : 0,
      .n_rows = n_rows,
      .n_bags = n_bags,
      .per_bag = n_bags > 0 && n >= n_bags ? n / n_bags : 1,
  };
}

/* Returns an error if the list of `n_bags` bags is invalid, else NULL. */
RECSYS_INLINE XLA_FFI_Error *lookups_expect(XLA_FFI_CallFrame *frame, int64_t first,
                                            int64_t n_bags) {
  const XLA_FFI_Buffer *rows = recsys_arg(frame, first), *bag = recsys_arg(frame, first + 1),
                       *weight = recsys_arg(frame, first + 2);
  int64_t n = recsys_dim(rows, 0);
  int64_t n_bag = recsys_dim(bag, 0) == 0 ? 0 : n, n_weight = recsys_dim(weight, 0) == 0 ? 0 : n;
  const RecsysArray arrays[] = {{"rows", rows, XLA_FFI_DataType_S32, 1, {RECSYS_ANY}},
                                {"bag", bag, XLA_FFI_DataType_S32, 1, {n_bag}},
                                {"weight", weight, XLA_FFI_DataType_F32, 1, {n_weight}}};
  XLA_FFI_Error *error = recsys_expect(frame, arrays, 3);
  if (error != NULL) return error;
  if (n_bag == 0 && n_bags > 0 && n % n_bags != 0) {
    return recsys_fail(frame, "recsys: bags without numbers must be of equal length");
  }
  return NULL;
}

RECSYS_INLINE int has_row(const Lookups *l, int64_t i) {
  return (uint32_t)l->rows[i] < (uint32_t)l->n_rows;
}

RECSYS_INLINE int has_bag(const Lookups *l, int64_t i) {
  return l->bag == NULL || (uint32_t)l->bag[i] < (uint32_t)l->n_bags;
}

RECSYS_INLINE int64_t bag_of(const Lookups *l, int64_t i) {
  return l->bag != NULL ? l->bag[i] : (int64_t)((uint32_t)i / (uint32_t)l->per_bag);
}

RECSYS_INLINE float weight_of(const Lookups *l, int64_t i) {
  return l->weight != NULL ? l->weight[i] : 1.0f;
}

#endif  // RECSYS_LOOKUPS_H_
