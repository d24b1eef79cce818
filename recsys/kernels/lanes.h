/* Rows of numbers, one register at a time: loads, weighted sums, sums of squares.

   Uses the vector extension of GCC and clang: one source for AVX-512, AVX, NEON and processors
   without vectors. Sums run lane by lane in a fixed order, so their bits are the same for all
   callers on one machine. */

#ifndef RECSYS_LANES_H_
#define RECSYS_LANES_H_

#include <stdint.h>
#include <string.h>

#include "call.h"

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

/* A register of floats, or of bfloat16 in the upper halves; addresses may be unaligned. */
typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef float LanesAt __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t WordLanes __attribute__((vector_size(4 * LANES)));
typedef uint16_t HalfLanesAt __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* Size of a cache line on common processors [bytes]. */
enum { LINE = 64 };

typedef uint16_t Bfloat16;

RECSYS_INLINE float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

RECSYS_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* Element `i` of a row, or LANES elements from it on. `is_half` is a constant in all calls, so
   the unused branch is compiled away. */
RECSYS_INLINE float element(const void *row, int is_half, int64_t i) {
  return is_half ? float_of((uint32_t)((const Bfloat16 *)row)[i] << 16) : ((const float *)row)[i];
}

RECSYS_INLINE Lanes lanes(const void *row, int is_half, int64_t i) {
  if (!is_half) return (Lanes) * (const LanesAt *)((const float *)row + i);
  HalfLanesAt halves = *(const HalfLanesAt *)((const Bfloat16 *)row + i);
  return (Lanes)(__builtin_convertvector(halves, WordLanes) << 16);
}

RECSYS_INLINE void put_lanes(float *row, int64_t i, Lanes x) { *(LanesAt *)(row + i) = (LanesAt)x; }

/* Prefetches the cache lines of a row: into the second-level cache, which allows more pending
   lines, or from there into the first, for reading or writing. */
typedef enum { FAR, NEAR_TO_READ, NEAR_TO_WRITE } Prefetch;

RECSYS_INLINE void prefetch(const void *row, int64_t bytes, Prefetch how) {
  const char *at = row;
  for (int64_t offset = 0; offset < bytes; offset += LINE) {
    if (how == FAR) __builtin_prefetch(at + offset, 0, 2);
    if (how == NEAR_TO_READ) __builtin_prefetch(at + offset, 0, 3);
    if (how == NEAR_TO_WRITE) __builtin_prefetch(at + offset, 1, 3);
  }
}

RECSYS_INLINE float sum_lanes(Lanes x) {
  float parts[LANES];
  memcpy(parts, &x, sizeof parts);
  for (int half = LANES / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; i++) parts[i] += parts[i + half];
  }
  return parts[0];
}

/* Returns the inner product of `x` [dim], bfloat16 if `is_half`, and `y` [dim]. */
RECSYS_INLINE float inner_product(const void *x, int is_half, const float *y, int64_t dim) {
  Lanes even = {0}, odd = {0};
  int64_t i = 0;
  for (; i + 2 * LANES <= dim; i += 2 * LANES) {
    even += lanes(x, is_half, i) * lanes(y, 0, i);
    odd += lanes(x, is_half, i + LANES) * lanes(y, 0, i + LANES);
  }
  for (; i + LANES <= dim; i += LANES) even += lanes(x, is_half, i) * lanes(y, 0, i);
  float rest = 0;
  for (; i < dim; i++) rest += element(x, is_half, i) * y[i];
  return sum_lanes(even + odd) + rest;
}

#endif  // RECSYS_LANES_H_
