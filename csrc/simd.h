// Sixteen lanes, whatever the machine has: the few vector operations that the kernels are written in.
//
// `F` is 16 floats, `I` 16 int32, `B` 64 bytes. One register (AVX-512), two (AVX2), or plain loops (baseline). The same
// kernel source is compiled once per instruction set, each time in a namespace of its own (QWILL_ISA), with these.
// Nothing here, and no kernel, may use the standard library: an inline function of it, compiled for AVX-512, could be
// the copy that the linker keeps for everybody.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define QWILL_METHOD inline __attribute__((always_inline))
#define QWILL_INLINE static __attribute__((unused)) QWILL_METHOD

namespace qwill::QWILL_ISA {

QWILL_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
QWILL_INLINE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

// bfloat16 is the upper half of a float; rounding is to nearest even, NaN stays NaN.
QWILL_INLINE float bf16_to_float(uint16_t x) { return float_of((uint32_t)x << 16); }
QWILL_INLINE uint16_t float_to_bf16(float x) {
  uint32_t b = bits_of(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((b >> 16) | 0x40);
  return (uint16_t)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
// IEEE half, subnormals included: shifted into place and scaled by 2^112; infinities and NaN have an exponent of their own.
QWILL_INLINE float f16_to_float(uint16_t x) {
  uint32_t magnitude = (uint32_t)(x & 0x7fff) << 13;
  float value = magnitude >= 0x0f800000u ? float_of(magnitude | 0x7f800000u) : float_of(magnitude) * 0x1p112f;
  return float_of(bits_of(value) | (uint32_t)(x & 0x8000) << 16);
}
QWILL_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

#if defined(QWILL_AVX512)

struct F { __m512 v; };
struct I { __m512i v; };
struct B { __m512i v; };

QWILL_INLINE F zero() { return {_mm512_setzero_ps()}; }
QWILL_INLINE F set1(float x) { return {_mm512_set1_ps(x)}; }
QWILL_INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
QWILL_INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
QWILL_INLINE F load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
QWILL_INLINE F load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
QWILL_INLINE F load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
// 16 pairs of bf16: the first of each pair, and the second.
QWILL_INLINE void load_bf16_pairs(const uint16_t* p, F& first, F& second) {
  __m512i both = _mm512_loadu_si512(p);
  first = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
  second = {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)))};
}
QWILL_INLINE F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
QWILL_INLINE F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
QWILL_INLINE F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
QWILL_INLINE F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
QWILL_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a b + c
QWILL_INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }             // b where either is NaN
QWILL_INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
QWILL_INLINE F abs(F a) { return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff)))}; }
QWILL_INLINE I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest even
QWILL_INLINE F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
QWILL_INLINE I set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
QWILL_INLINE I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
QWILL_INLINE I operator-(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
QWILL_INLINE void store_i8(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }
QWILL_INLINE F scale_by_power(F a, I n) {  // a · 2^n, n in -126 … 127
  __m512i power = _mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23);
  return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(power))};
}
QWILL_INLINE void store_int(int32_t* p, I a) { _mm512_storeu_si512(p, a.v); }

QWILL_INLINE B load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
QWILL_INLINE void store_bytes(uint8_t* p, B a) { _mm512_storeu_si512(p, a.v); }
QWILL_INLINE B low_nibbles(B a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
QWILL_INLINE B high_nibbles(B a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }

// Sum over a group of inputs of unsigned codes × signed activations, exact in int32: lane r gathers row r's 4 products.
constexpr bool kBytesAreNibblePairs = false;  // 8-bit codes are multiplied as they are
struct Dot { __m512i v; };
QWILL_INLINE Dot dot_zero() { return {_mm512_setzero_si512()}; }
QWILL_INLINE Dot dot_add(Dot d, B codes, int32_t four_inputs) {
  return {_mm512_dpbusd_epi32(d.v, codes.v, _mm512_set1_epi32(four_inputs))};
}
QWILL_INLINE I dot_sum(Dot d) { return {d.v}; }
QWILL_INLINE I dot_sum16(Dot d) { return {_mm512_slli_epi32(d.v, 4)}; }  // 16 times the sum

#elif defined(QWILL_AVX2)

struct F { __m256 lo, hi; };
struct I { __m256i lo, hi; };
struct B { __m256i lo, hi; };

QWILL_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
QWILL_INLINE F set1(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
QWILL_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
QWILL_INLINE void store(float* p, F a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
QWILL_INLINE __m256 widen_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
QWILL_INLINE F load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
QWILL_INLINE F load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
QWILL_INLINE __m256 widen_i8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
QWILL_INLINE F load_i8(const int8_t* p) { return {widen_i8(p), widen_i8(p + 8)}; }
QWILL_INLINE void load_bf16_pairs(const uint16_t* p, F& first, F& second) {
  __m256i a = _mm256_loadu_si256((const __m256i*)p), b = _mm256_loadu_si256((const __m256i*)(p + 16));
  __m256i upper = _mm256_set1_epi32((int)0xffff0000);
  first = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  second = {_mm256_castsi256_ps(_mm256_and_si256(a, upper)), _mm256_castsi256_ps(_mm256_and_si256(b, upper))};
}
QWILL_INLINE F operator+(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
QWILL_INLINE F operator-(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
QWILL_INLINE F operator*(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
QWILL_INLINE F operator/(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
QWILL_INLINE F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
QWILL_INLINE F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
QWILL_INLINE F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
QWILL_INLINE F abs(F a) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
QWILL_INLINE I to_int(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
QWILL_INLINE F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
QWILL_INLINE I set1_int(int32_t x) { __m256i v = _mm256_set1_epi32(x); return {v, v}; }
QWILL_INLINE I operator+(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
QWILL_INLINE I operator-(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
QWILL_INLINE void store_i8(int8_t* p, I a) {  // the low byte of each lane
  const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                        0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 1, 1, 1, 1, 1);
  __m256i lo = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(a.lo, pick), order);
  __m256i hi = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(a.hi, pick), order);
  _mm_storel_epi64((__m128i*)p, _mm256_castsi256_si128(lo));
  _mm_storel_epi64((__m128i*)(p + 8), _mm256_castsi256_si128(hi));
}
QWILL_INLINE __m256 scale_half_by_power(__m256 a, __m256i n) {
  __m256i power = _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(a, _mm256_castsi256_ps(power));
}
QWILL_INLINE F scale_by_power(F a, I n) { return {scale_half_by_power(a.lo, n.lo), scale_half_by_power(a.hi, n.hi)}; }
QWILL_INLINE void store_int(int32_t* p, I a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 8), a.hi);
}

QWILL_INLINE B load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
QWILL_INLINE void store_bytes(uint8_t* p, B a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 32), a.hi);
}
QWILL_INLINE B low_nibbles(B a) {
  __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
QWILL_INLINE B high_nibbles(B a) {
  __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), mask)};
}

#if defined(QWILL_AVX2_VNNI)
constexpr bool kBytesAreNibblePairs = false;
struct Dot { __m256i lo, hi; };
QWILL_INLINE Dot dot_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
QWILL_INLINE Dot dot_add(Dot d, B codes, int32_t four_inputs) {
  __m256i x = _mm256_set1_epi32(four_inputs);
  return {_mm256_dpbusd_avx_epi32(d.lo, codes.lo, x), _mm256_dpbusd_avx_epi32(d.hi, codes.hi, x)};
}
QWILL_INLINE I dot_sum(Dot d) { return {d.lo, d.hi}; }
QWILL_INLINE I dot_sum16(Dot d) { return {_mm256_slli_epi32(d.lo, 4), _mm256_slli_epi32(d.hi, 4)}; }
#else
// Without VNNI, products are summed in int16: of codes up to 15 and activations up to ±127, sixteen fit
// (2 × 8 × 15 × 127 = 30,480), which is one group of 32 inputs. 8-bit codes go as two nibbles, for the same reason.
constexpr bool kBytesAreNibblePairs = true;
struct Dot { __m256i lo, hi; };
QWILL_INLINE Dot dot_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
QWILL_INLINE Dot dot_add(Dot d, B codes, int32_t four_inputs) {
  __m256i x = _mm256_set1_epi32(four_inputs);
  return {_mm256_add_epi16(d.lo, _mm256_maddubs_epi16(codes.lo, x)),
          _mm256_add_epi16(d.hi, _mm256_maddubs_epi16(codes.hi, x))};
}
QWILL_INLINE I times_sum(Dot d, int16_t times) {
  __m256i factor = _mm256_set1_epi16(times);
  return {_mm256_madd_epi16(d.lo, factor), _mm256_madd_epi16(d.hi, factor)};
}
QWILL_INLINE I dot_sum(Dot d) { return times_sum(d, 1); }
QWILL_INLINE I dot_sum16(Dot d) { return times_sum(d, 16); }
#endif

#else  // baseline: plain loops, which the compiler turns into what the oldest machine has

struct F { float v[16]; };
struct I { int32_t v[16]; };
struct B { uint8_t v[64]; };

#define QWILL_EACH(expression) for (int i = 0; i < 16; i++) r.v[i] = (expression); return r
QWILL_INLINE F zero() { F r; QWILL_EACH(0.0f); }
QWILL_INLINE F set1(float x) { F r; QWILL_EACH(x); }
QWILL_INLINE F load(const float* p) { F r; QWILL_EACH(p[i]); }
QWILL_INLINE void store(float* p, F a) { for (int i = 0; i < 16; i++) p[i] = a.v[i]; }
QWILL_INLINE F load_bf16(const uint16_t* p) { F r; QWILL_EACH(bf16_to_float(p[i])); }
QWILL_INLINE F load_f16(const uint16_t* p) { F r; QWILL_EACH(f16_to_float(p[i])); }
QWILL_INLINE F load_i8(const int8_t* p) { F r; QWILL_EACH((float)p[i]); }
QWILL_INLINE void load_bf16_pairs(const uint16_t* p, F& first, F& second) {
  for (int i = 0; i < 16; i++) {
    first.v[i] = bf16_to_float(p[2 * i]);
    second.v[i] = bf16_to_float(p[2 * i + 1]);
  }
}
QWILL_INLINE F operator+(F a, F b) { F r; QWILL_EACH(a.v[i] + b.v[i]); }
QWILL_INLINE F operator-(F a, F b) { F r; QWILL_EACH(a.v[i] - b.v[i]); }
QWILL_INLINE F operator*(F a, F b) { F r; QWILL_EACH(a.v[i] * b.v[i]); }
QWILL_INLINE F operator/(F a, F b) { F r; QWILL_EACH(a.v[i] / b.v[i]); }
QWILL_INLINE F fma(F a, F b, F c) { F r; QWILL_EACH(a.v[i] * b.v[i] + c.v[i]); }
QWILL_INLINE F max(F a, F b) { F r; QWILL_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
QWILL_INLINE F min(F a, F b) { F r; QWILL_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
QWILL_INLINE F abs(F a) { F r; QWILL_EACH(float_of(bits_of(a.v[i]) & 0x7fffffffu)); }
// Adding 1.5 · 2^23 leaves the nearest whole number, ties to even, in the low bits; for |a| < 2^22.
QWILL_INLINE I to_int(F a) { I r; QWILL_EACH((int32_t)(bits_of(a.v[i] + 0x1.8p23f) - 0x4b400000u)); }
QWILL_INLINE F to_float(I a) { F r; QWILL_EACH((float)a.v[i]); }
QWILL_INLINE I set1_int(int32_t x) { I r; QWILL_EACH(x); }
QWILL_INLINE I operator+(I a, I b) { I r; QWILL_EACH(a.v[i] + b.v[i]); }
QWILL_INLINE I operator-(I a, I b) { I r; QWILL_EACH(a.v[i] - b.v[i]); }
QWILL_INLINE void store_i8(int8_t* p, I a) { for (int i = 0; i < 16; i++) p[i] = (int8_t)a.v[i]; }
QWILL_INLINE F scale_by_power(F a, I n) { F r; QWILL_EACH(a.v[i] * float_of((uint32_t)(n.v[i] + 127) << 23)); }
QWILL_INLINE void store_int(int32_t* p, I a) { for (int i = 0; i < 16; i++) p[i] = a.v[i]; }
#undef QWILL_EACH

QWILL_INLINE B load_bytes(const uint8_t* p) { B r; for (int i = 0; i < 64; i++) r.v[i] = p[i]; return r; }
QWILL_INLINE void store_bytes(uint8_t* p, B a) { for (int i = 0; i < 64; i++) p[i] = a.v[i]; }
QWILL_INLINE B low_nibbles(B a) { B r; for (int i = 0; i < 64; i++) r.v[i] = a.v[i] & 15; return r; }
QWILL_INLINE B high_nibbles(B a) { B r; for (int i = 0; i < 64; i++) r.v[i] = a.v[i] >> 4; return r; }

constexpr bool kBytesAreNibblePairs = false;
struct Dot { int32_t v[16]; };
QWILL_INLINE Dot dot_zero() { Dot r; for (int i = 0; i < 16; i++) r.v[i] = 0; return r; }
QWILL_INLINE Dot dot_add(Dot d, B codes, int32_t four_inputs) {
  int8_t x[4];
  __builtin_memcpy(x, &four_inputs, 4);
  for (int i = 0; i < 16; i++)
    d.v[i] += codes.v[4 * i] * x[0] + codes.v[4 * i + 1] * x[1] + codes.v[4 * i + 2] * x[2] + codes.v[4 * i + 3] * x[3];
  return d;
}
QWILL_INLINE I dot_sum(Dot d) { I r; for (int i = 0; i < 16; i++) r.v[i] = d.v[i]; return r; }
QWILL_INLINE I dot_sum16(Dot d) { I r; for (int i = 0; i < 16; i++) r.v[i] = 16 * d.v[i]; return r; }

#endif

// The sum and the greatest of the lanes, always by the same tree: halves are folded onto each other.
QWILL_INLINE float reduce_add(F a) {
#if defined(QWILL_AVX512)
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)));
#elif defined(QWILL_AVX2)
  __m256 half = _mm256_add_ps(a.lo, a.hi);
#endif
#if defined(QWILL_AVX512) || defined(QWILL_AVX2)
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
#else
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] += a.v[i + width];
  return a.v[0];
#endif
}
QWILL_INLINE float reduce_max(F a) {
  float lanes[16];
  store(lanes, a);
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
}

// The first n lanes (0 … 16); the others read as `fill` and are not written.
QWILL_INLINE F load_first(const float* p, int64_t n, float fill = 0.0f) {
  if (n >= 16) return load(p);
  float lanes[16];
  for (int i = 0; i < 16; i++) lanes[i] = i < n ? p[i] : fill;
  return load(lanes);
}
QWILL_INLINE void store_first(float* p, F a, int64_t n) {
  if (n >= 16) return store(p, a);
  float lanes[16];
  store(lanes, a);
  for (int64_t i = 0; i < n; i++) p[i] = lanes[i];
}
QWILL_INLINE void store_bf16(uint16_t* p, F a, int64_t n = 16) {
  float lanes[16];
  store(lanes, a);
  for (int64_t i = 0; i < n && i < 16; i++) p[i] = float_to_bf16(lanes[i]);
}

// e^x with a relative error below 2e-7; x is cut to -87.3 … 88.3, where e^x is still a normal float; NaN stays NaN.
// x = n ln 2 + r with |r| ≤ ln 2 / 2, where ln 2 is in two parts so that n times the first is exact;
// e^r = 1 + r + r² q(r), with q fitted for the least greatest relative error (4e-9 before rounding).
QWILL_INLINE F exp(F x) {
  F cut = min(set1(88.3f), max(set1(-87.3f), x));  // in this order: min and max give their second argument where it is NaN
  I n = to_int(cut * set1(1.44269504f));
  F whole = to_float(n);
  F r = fma(whole, set1(-0.693145751953125f), cut);
  r = fma(whole, set1(-1.42860682e-6f), r);
  F q = fma(set1(1.37511501e-3f), r, set1(8.36898759e-3f));
  q = fma(q, r, set1(4.16695438e-2f));
  q = fma(q, r, set1(1.66665182e-1f));
  q = fma(q, r, set1(4.99999881e-1f));
  return scale_by_power(fma(q, r * r, r + set1(1.0f)), n);
}

}  // namespace qwill::QWILL_ISA
