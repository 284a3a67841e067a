// The two products of attention for a few query rows at a time: q · k, and weights · v.
//
// Keys and values are read as they lie in memory (T is float, bfloat16 as uint16_t, or an int8 code) and widened on the
// way. Each sum is one chain of operations, whatever is computed beside it: lane l of q · k gathers the elements
// l, l + 16 … in order and the lanes are then folded; an element of weights · v gathers the keys in order.
#pragma once

#include "isa.h"

namespace qwill::QWILL_ISA {

QWILL_INLINE F widen(const float* p) { return load(p); }
QWILL_INLINE F widen(const uint16_t* p) { return load_bf16(p); }
QWILL_INLINE F widen(const int8_t* p) { return load_i8(p); }

// Row j begins at data + offsets[j].
template <class T>
struct Rows {
  const T* data;
  const int64_t* offsets;
};

constexpr int kKeys = 4;  // keys whose products are summed together

// Part: what one register holds of 16 lanes. There are registers for kQueries × kKeys of them, or × kValueParts, and
// for one more of each query and one of a key or value.
#if defined(QWILL_AVX2)
constexpr int kQueries = 3, kValueParts = 4, kPartLanes = 8;
struct Part { __m256 v; };
QWILL_INLINE Part widen_part(const float* p) { return {_mm256_loadu_ps(p)}; }
QWILL_INLINE Part widen_part(const uint16_t* p) { return {widen_bf16(p)}; }
QWILL_INLINE Part widen_part(const int8_t* p) { return {widen_i8(p)}; }
QWILL_INLINE Part part_set1(float x) { return {_mm256_set1_ps(x)}; }
QWILL_INLINE void store_part(float* p, Part a) { _mm256_storeu_ps(p, a.v); }
QWILL_INLINE Part fma(Part a, Part b, Part c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
QWILL_INLINE Part operator+(Part a, Part b) { return {_mm256_add_ps(a.v, b.v)}; }
QWILL_INLINE __m128 fold_to_four(Part a) {
  return _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
}
#else
constexpr int kPartLanes = 16;
using Part = F;
template <class T>
QWILL_INLINE Part widen_part(const T* p) { return widen(p); }
QWILL_INLINE Part part_set1(float x) { return set1(x); }
QWILL_INLINE void store_part(float* p, Part a) { store(p, a); }
#if defined(QWILL_AVX512)
constexpr int kQueries = 4, kValueParts = 4;
QWILL_INLINE __m128 fold_to_four(Part a) {
  __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper);
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
#else
constexpr int kQueries = 1, kValueParts = 1;
#endif
#endif

// The sums over the lanes of four, each to the bit what `reduce_add` gives.
QWILL_INLINE void store_sums(const Part (&a)[kKeys], float* out) {
#if defined(QWILL_AVX2) || defined(QWILL_AVX512)
  __m128 q0 = fold_to_four(a[0]), q1 = fold_to_four(a[1]), q2 = fold_to_four(a[2]), q3 = fold_to_four(a[3]);
  __m128 first = _mm_add_ps(_mm_shuffle_ps(q0, q1, 0x44), _mm_shuffle_ps(q0, q1, 0xee));
  __m128 last = _mm_add_ps(_mm_shuffle_ps(q2, q3, 0x44), _mm_shuffle_ps(q2, q3, 0xee));
  _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(first, last, 0x88), _mm_shuffle_ps(first, last, 0xdd)));
#else
  for (int j = 0; j < kKeys; j++) out[j] = reduce_add(a[j]);
#endif
}

// Q queries, `width` apart, × kKeys keys, over the lanes of one part.
template <int Q, class T>
QWILL_INLINE void sum_products(const float* q, Rows<T> keys, int64_t width, int64_t lane, Part (&sum)[Q][kKeys]) {
  const T* key[kKeys];
  for (int j = 0; j < kKeys; j++) {
    key[j] = keys.data + keys.offsets[j];
    for (int i = 0; i < Q; i++) sum[i][j] = part_set1(0.0f);
  }
  for (int64_t d = lane; d < width; d += 16) {
    Part query[Q];
    for (int i = 0; i < Q; i++) query[i] = widen_part(q + i * width + d);
    for (int j = 0; j < kKeys; j++) {
      Part part = widen_part(key[j] + d);
      for (int i = 0; i < Q; i++) sum[i][j] = fma(query[i], part, sum[i][j]);
    }
  }
}

// Scores of Q rows with `count` keys, rounded up to whole kKeys: that many offsets and scores must be there.
template <int Q, class T>
void score_rows(const float* q, Rows<T> keys, int64_t count, int64_t width, float* scores) {
  for (int64_t j = 0; j < count; j += kKeys, keys.offsets += kKeys) {
    Part sum[Q][kKeys];
    sum_products<Q>(q, keys, width, 0, sum);
    if constexpr (kPartLanes < 16) {
      Part upper[Q][kKeys];
      sum_products<Q>(q, keys, width, kPartLanes, upper);
      for (int i = 0; i < Q; i++)
        for (int k = 0; k < kKeys; k++) sum[i][k] = sum[i][k] + upper[i][k];
    }
    for (int i = 0; i < Q; i++) store_sums(sum[i], scores + i * kChunk + j);
  }
}

// Adds weighted values [0, count) to W parts of Q records.
template <int Q, int W, class T>
QWILL_INLINE void add_parts(const float* weights, Rows<T> values, int64_t count, int64_t record, float* sums) {
  Part sum[Q][W];
  for (int i = 0; i < Q; i++)
    for (int w = 0; w < W; w++) sum[i][w] = widen_part(sums + i * record + kPartLanes * w);
  for (int64_t j = 0; j < count; j++) {
    const T* row = values.data + values.offsets[j];
    Part weight[Q];
    for (int i = 0; i < Q; i++) weight[i] = part_set1(weights[i * kChunk + j]);
    for (int w = 0; w < W; w++) {
      Part value = widen_part(row + kPartLanes * w);
      for (int i = 0; i < Q; i++) sum[i][w] = fma(weight[i], value, sum[i][w]);
    }
  }
  for (int i = 0; i < Q; i++)
    for (int w = 0; w < W; w++) store_part(sums + i * record + kPartLanes * w, sum[i][w]);
}

template <int Q, class T>
void add_rows(const float* weights, Rows<T> values, int64_t count, int64_t width, float* sums) {
  constexpr int kStep = kValueParts * kPartLanes;
  int64_t d = 0, record = width + kRecordHead;
  for (; d + kStep <= width; d += kStep, values.data += kStep)
    add_parts<Q, kValueParts>(weights, values, count, record, sums + d);
  for (; d < width; d += 16, values.data += 16)
    add_parts<Q, 16 / kPartLanes>(weights, values, count, record, sums + d);
}

}  // namespace qwill::QWILL_ISA
