/* Items and queries rounded to int8, and their products.

   A register holds four numbers of each of LANES items, and each word of another register holds
   the query's four numbers; one instruction multiplies and adds all of them (VNNI), or three
   do. Numbers of items are stored with an offset, as unsigned bytes. */

#ifndef RECSYS_RANK_BYTES_H_
#define RECSYS_RANK_BYTES_H_

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "softmax_products.h"

typedef int32_t IntLanes __attribute__((vector_size(4 * LANES)));
typedef int32_t IntLanesAt __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Range of items' numbers: -LARGEST … LARGEST, stored with LARGEST + 1 added. Without VNNI two
   products must fit into 16 bits. IS_FAST: whether it is faster than products of floats. */
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
enum { LARGEST = 127, IS_FAST = 1 };
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
enum { LARGEST = 63, IS_FAST = 1 };
#else
enum { LARGEST = 127, IS_FAST = 0 };
#endif
enum { OFFSET = LARGEST + 1, LARGEST_OF_QUERY = 127 };

/* Numbers of one item that are multiplied at once. */
enum { GROUP = 4 };

/* Items are stored in panels of [dim / GROUP, PANEL_ROWS, GROUP] bytes. The sums of ACROSS
   registers of items and TALL queries, or one, stay in registers. */
enum { PANEL_ROWS = 48 };
#if defined(__AVX512F__)
enum { ACROSS = 3, TALL = 8 };
#elif defined(__AVX__)
enum { ACROSS = 2, TALL = 4 };
#else
enum { ACROSS = 3, TALL = 4 };
#endif
enum { STRIP = ACROSS * LANES };

RECSYS_INLINE IntLanes int_lanes(const void *at) { return (IntLanes) * (const IntLanesAt *)at; }
RECSYS_INLINE IntLanes all_int(int32_t x) { return (IntLanes){0} + x; }

/* sums[i] += the products of the four numbers of item i with those of the query. */
RECSYS_INLINE IntLanes add_products(IntLanes sums, IntLanes items, int32_t query) {
#if defined(__AVX512VNNI__)
  return (IntLanes)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)items, _mm512_set1_epi32(query));
#elif defined(__AVX512BW__)
  const __m512i pairs = _mm512_maddubs_epi16((__m512i)items, _mm512_set1_epi32(query));
  return sums + (IntLanes)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
  return (IntLanes)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)items,
                                           _mm256_set1_epi32(query));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)items, _mm256_set1_epi32(query));
  return sums + (IntLanes)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  for (int i = 0; i < GROUP; i++) {
    sums += ((items >> 8 * i) & 255) * (int32_t)(int8_t)(query >> 8 * i);
  }
  return sums;
#endif
}

RECSYS_INLINE Lanes as_floats(IntLanes x) { return __builtin_convertvector(x, Lanes); }

/* sums [rows, ACROSS] += products of `rows` queries, [groups, rows] words of GROUP bytes,
   with STRIP items of a panel. */
RECSYS_INLINE void add_all_products(const int rows, IntLanes *sums, const int32_t *query,
                                    const uint8_t *items, int64_t groups) {
  for (int64_t g = 0; g < groups; g++) {
    IntLanes line[ACROSS];
    UNROLL for (int v = 0; v < ACROSS; v++) {
      line[v] = int_lanes(items + (g * PANEL_ROWS + v * LANES) * GROUP);
    }
    UNROLL for (int m = 0; m < rows; m++) {
      UNROLL for (int v = 0; v < ACROSS; v++) {
        sums[m * ACROSS + v] = add_products(sums[m * ACROSS + v], line[v], query[g * rows + m]);
      }
    }
  }
}

#endif  // RECSYS_RANK_BYTES_H_
