/* One step of each optimizer on one row; recsys/embedding/optimizers.py defines them. */

#ifndef RECSYS_OPTIMIZERS_H_
#define RECSYS_OPTIMIZERS_H_

#include <math.h>

#include "lanes.h"

typedef enum { SGD, ADAGRAD, ROW_WISE_ADAGRAD, LAZY_ADAM, FTRL, N_OPTIMIZERS } Optimizer;

/* Scalars of an optimizer; `rate`, `scale` and `step_size` change from step to step. */
typedef struct {
  float rate, scale, step_size;
  float weight_decay, clipnorm, epsilon;
  float gain_1, gain_2; /* 1 - beta_1, 1 - beta_2 */
  float power, l1, l2, shrinkage, beta;
} Scalars;

/* Returns the sum of squares of `x` [dim]. */
RECSYS_INLINE float square_sum(const float *x, int64_t dim) { return inner_product(x, 0, x, dim); }

RECSYS_INLINE void sgd(const Scalars *n, float *restrict w, const float *restrict g, int64_t dim) {
  for (int64_t i = 0; i < dim; i++) w[i] -= n->rate * g[i];
}

RECSYS_INLINE void adagrad(const Scalars *n, float *restrict w, float *restrict a,
                           const float *restrict g, int64_t dim) {
  for (int64_t i = 0; i < dim; i++) {
    a[i] += g[i] * g[i];
    w[i] -= n->rate * g[i] / sqrtf(a[i] + n->epsilon);
  }
}

RECSYS_INLINE void row_wise_adagrad(const Scalars *n, float *restrict w, float *restrict a,
                                    const float *restrict g, int64_t dim) {
  a[0] += square_sum(g, dim) / (float)dim;
  float step = n->rate / sqrtf(a[0] + n->epsilon);
  for (int64_t i = 0; i < dim; i++) w[i] -= step * g[i];
}

RECSYS_INLINE void lazy_adam(const Scalars *n, float *restrict w, float *restrict m,
                             float *restrict v, const float *restrict g, int64_t dim) {
  for (int64_t i = 0; i < dim; i++) {
    m[i] += n->gain_1 * (g[i] - m[i]);
    v[i] += n->gain_2 * (g[i] * g[i] - v[i]);
    w[i] -= n->step_size * m[i] / (sqrtf(v[i]) + n->epsilon);
  }
}

/* `is_root`: the power is one half, the default. */
RECSYS_INLINE void ftrl_with(const Scalars *n, float *restrict w, float *restrict a,
                             float *restrict z, const float *restrict g, int64_t dim, int is_root) {
  float l2 = n->l2 + n->beta / (2.0f * n->rate);
  for (int64_t i = 0; i < dim; i++) {
    float sum = a[i] + g[i] * g[i];
    float old_power = is_root ? sqrtf(a[i]) : powf(a[i], n->power);
    float new_power = is_root ? sqrtf(sum) : powf(sum, n->power);
    float shrunk = g[i] + 2.0f * n->shrinkage * w[i];
    float linear = z[i] + shrunk - (new_power - old_power) / n->rate * w[i];
    /* Written so that NaN stays NaN. */
    float clipped = linear > n->l1 ? n->l1 : linear < -n->l1 ? -n->l1 : linear;
    a[i] = sum;
    z[i] = linear;
    w[i] = (clipped - linear) / (new_power / n->rate + 2.0f * l2);
  }
}

RECSYS_INLINE void ftrl(const Scalars *n, float *restrict w, float *restrict a, float *restrict z,
                        const float *restrict g, int64_t dim) {
  if (n->power == 0.5f) {
    ftrl_with(n, w, a, z, g, dim, 1);
  } else {
    ftrl_with(n, w, a, z, g, dim, 0);
  }
}

/* Takes one step on the row `w` [dim] with its slots; `optimizer` is a constant. */
RECSYS_INLINE void take_step(Optimizer optimizer, const Scalars *n, float *w, float *slot_0,
                             float *slot_1, float *g, int64_t dim) {
  if (n->clipnorm > 0) {
    float norm = sqrtf(square_sum(g, dim));
    float shorter = n->clipnorm / (norm > n->clipnorm || norm != norm ? norm : n->clipnorm);
    for (int64_t i = 0; i < dim; i++) g[i] *= shorter;
  }
  if (n->weight_decay != 0) {
    for (int64_t i = 0; i < dim; i++) w[i] -= n->rate * n->weight_decay * w[i];
  }
  switch (optimizer) {
    case SGD: sgd(n, w, g, dim); break;
    case ADAGRAD: adagrad(n, w, slot_0, g, dim); break;
    case ROW_WISE_ADAGRAD: row_wise_adagrad(n, w, slot_0, g, dim); break;
    case LAZY_ADAM: lazy_adam(n, w, slot_0, slot_1, g, dim); break;
    default: ftrl(n, w, slot_0, slot_1, g, dim); break;
  }
}

/* ---- bfloat16: stochastic rounding ---- */

/* The finalizer of MurmurHash3 (Appleby): every bit depends on every bit. */
RECSYS_INLINE uint32_t fmix32(uint32_t h) {
  h = (h ^ h >> 16) * 0x85EBCA6Bu;
  h = (h ^ h >> 13) * 0xC2B2AE35u;
  return h ^ h >> 16;
}

RECSYS_INLINE uint32_t column_key(uint32_t column, uint32_t seed) {
  return fmix32(column * 0x85EBCA77u ^ seed);
}

RECSYS_INLINE uint32_t row_key(uint32_t row) { return row * 0x9E3779B1u; }

/* Rounds `w` [dim] up or down at random, without bias. Values that aren't finite are truncated,
   which keeps infinities and the NaN of arithmetic. */
RECSYS_INLINE void round_row(Bfloat16 *restrict out, const float *restrict w,
                             const uint32_t *restrict columns, uint32_t row, int64_t dim) {
  for (int64_t i = 0; i < dim; i++) {
    uint32_t bits = bits_of(w[i]);
    uint32_t chance = fmix32(row ^ columns[i]) >> 16;
    uint32_t finite = (bits & 0x7F800000u) != 0x7F800000u;
    out[i] = (Bfloat16)((bits + (finite ? chance : 0)) >> 16);
  }
}

#endif  // RECSYS_OPTIMIZERS_H_
