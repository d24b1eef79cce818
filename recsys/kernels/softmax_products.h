/* Products of small matrices, with sums that stay in registers, and exponentials: the hot loops
   of the softmax. */

#ifndef RECSYS_SOFTMAX_PRODUCTS_H_
#define RECSYS_SOFTMAX_PRODUCTS_H_

#include <math.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lanes.h"

/* ---- Vectors (see lanes.h), and the number of sums that fit the registers ---- */

#if defined(__AVX512F__)
enum { SUMS = 24, MAX_VECTORS = 4, LOGIT_VECTORS = 3 };
#elif defined(__AVX__)
enum { SUMS = 12, MAX_VECTORS = 2, LOGIT_VECTORS = 2 };
#elif defined(__aarch64__)
enum { SUMS = 24, MAX_VECTORS = 4, LOGIT_VECTORS = 3 };
#else
enum { SUMS = 12, MAX_VECTORS = 4, LOGIT_VECTORS = 3 };
#endif

/* TILE is a multiple of the height of every tile (SUMS / its vectors); ROWS and COLS are
   multiples of TILE, and COLS is a multiple of each tile's width. */
enum { TILE = 24, ROWS = 96, COLS = 48, PANEL = ROWS * COLS, DIM_STEP = 16 };

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 24")
#endif

RECSYS_INLINE Lanes load(const float *at) { return lanes(at, 0, 0); }
RECSYS_INLINE void store(float *at, Lanes x) { put_lanes(at, 0, x); }

/* x - 0 is x for every x: compilers make it one broadcast. */
RECSYS_INLINE Lanes all(float x) { return x - (Lanes){0}; }

/* Elementwise maximum; keeps NaN in `y`, and ignores NaN in `x`. */
RECSYS_INLINE Lanes larger(Lanes x, Lanes y) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(__AVX__)
  return (Lanes)_mm256_max_ps((__m256)x, (__m256)y);
#elif defined(__SSE__)
  return (Lanes)_mm_max_ps((__m128)x, (__m128)y);
#else
  const WordLanes is_x = (WordLanes)(x > y);
  return (Lanes)(((WordLanes)x & is_x) | ((WordLanes)y & ~is_x));
#endif
}

static float largest_in(Lanes x) {
  float most = x[0];
  for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
  return most;
}

/* exp(x) for x <= 0, with an error up to 2e-7: 0 below -87.7, NaN for NaN. The polynomial is
   from Cephes' expf. */
RECSYS_INLINE Lanes exp_of(Lanes x) {
  const Lanes lowest = all(-88.0f), rounder = all(12582912.0f); /* 1.5 · 2^23 */
  x = larger(lowest, x);
  const Lanes shifted = x * 1.44269504089f + rounder, n = shifted - rounder;
  Lanes r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  /* The low bits of `shifted` are n; n = -127 gives the factor 0. */
  const WordLanes power = ((WordLanes)shifted << 23) + (127u << 23);
  return p * (Lanes)power;
}

/* ---- Products: sums that stay in registers ---- */

/* sums[m, v] += factor[m * row_step + k * depth_step] * matrix[k * stride + v], k < depth. */
RECSYS_INLINE void multiply(const int rows, const int vectors, Lanes sums[SUMS],
                            const float *factor, const int64_t row_step,
                            const int64_t depth_step, const float *matrix,
                            const int64_t stride, const int64_t depth) {
  for (int64_t k = 0; k < depth; k++) {
    Lanes line[MAX_VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) line[v] = load(matrix + k * stride + v * LANES);
    UNROLL for (int m = 0; m < rows; m++) {
      const Lanes f = all(factor[m * row_step + k * depth_step]);
      UNROLL for (int v = 0; v < vectors; v++) sums[m * vectors + v] += line[v] * f;
    }
  }
}

/* into [height, width] = into (0 if `fresh`) + factor · matrix [depth, width]; height is a
   multiple of TILE, width of DIM_STEP. */
typedef struct {
  float *into;
  int64_t height, width;
  int fresh;
  const float *factor;
  const float *matrix;
  int64_t stride, depth;
} Product;

RECSYS_INLINE void strip(const Product p, const int vectors, const int64_t row_step,
                         const int64_t depth_step, const int64_t column) {
  const int rows = SUMS / vectors;
  for (int64_t row = 0; row < p.height; row += rows) {
    float *into = p.into + row * p.width + column;
    Lanes sums[SUMS];
    UNROLL for (int i = 0; i < rows * vectors; i++) {
      sums[i] = p.fresh ? all(0) : load(into + i / vectors * p.width + i % vectors * LANES);
    }
    multiply(rows, vectors, sums, p.factor + row * row_step, row_step, depth_step,
             p.matrix + column, p.stride, p.depth);
    UNROLL for (int i = 0; i < rows * vectors; i++) {
      store(into + i / vectors * p.width + i % vectors * LANES, sums[i]);
    }
  }
}

RECSYS_INLINE void product(const Product p, const int64_t row_step, const int64_t depth_step) {
  int64_t column = 0;
  for (; column + MAX_VECTORS * LANES <= p.width; column += MAX_VECTORS * LANES) {
    strip(p, MAX_VECTORS, row_step, depth_step, column);
  }
#if defined(__AVX512F__)
  switch ((p.width - column) / LANES) {
    case 1: strip(p, 1, row_step, depth_step, column); break;
    case 2: strip(p, 2, row_step, depth_step, column); break;
    case 3: strip(p, 3, row_step, depth_step, column); break;
    default: break;
  }
#endif
}

/* factor is a panel [height, COLS], or its transpose. */
static __attribute__((noinline)) void product_of(const Product *p) { product(*p, COLS, 1); }
static __attribute__((noinline)) void product_of_transposed(const Product *p) {
  product(*p, 1, COLS);
}

#endif  // RECSYS_SOFTMAX_PRODUCTS_H_
