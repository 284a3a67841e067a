// What a model does between its matrices: norms, rotary positions, the gate, sums, the greatest logit.
//
// Each row is computed by itself and in one fixed order, so its bits do not depend on its neighbours. What is NaN on
// the way in is NaN on the way out.
#include "isa.h"

namespace qwill::QWILL_ISA {
namespace {

const float* row_of(const HeadRows& x, int64_t row) {
  return x.x + row / x.heads * x.token_stride + row % x.heads * x.head_stride;
}

// step(i, n) for the n ≤ 16 elements from each i on. Whole steps see the constant 16, and lose all code for tails.
template <class Step>
QWILL_INLINE void by_sixteen(int64_t count, Step step) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) step(i, 16);
  if (i < count) step(i, count - i);
}
#define QWILL_STEP [&](int64_t i, int64_t n) __attribute__((always_inline))

float sum_of_squares(const float* x, int64_t size) {
  F even = zero(), odd = zero();  // two chains: the next addition need not wait for the one before
  int64_t pairs = size / 32 * 32;
  for (int64_t i = 0; i < pairs; i += 32) {
    F a = load(x + i), b = load(x + i + 16);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  by_sixteen(size - pairs, QWILL_STEP {
    F a = load_first(x + pairs + i, n);
    even = fma(a, a, even);
  });
  return reduce_add(even + odd);
}

void norm_row(const float* x, int64_t size, const Norm& norm, float* y) {
  float mean = sum_of_squares(x, size) / (float)size;
  F scale = set1(1.0f / __builtin_sqrtf(mean + norm.eps));
  by_sixteen(size, QWILL_STEP {
    F w = load_first(norm.weight + i, n);
    store_first(y + i, w * (load_first(x + i, n) * scale), n);
  });
}

// Dimension i turns together with dimension i + size / 2. y may be x.
void rope_row(const float* x, int64_t size, const float* cos, const float* sin, float* y) {
  int64_t half = size / 2;
  by_sixteen(half, QWILL_STEP {
    F low = load_first(x + i, n), high = load_first(x + half + i, n);
    F turned_low = low * load_first(cos + i, n) - high * load_first(sin + i, n);
    F turned_high = high * load_first(cos + half + i, n) + low * load_first(sin + half + i, n);
    store_first(y + i, turned_low, n);
    store_first(y + half + i, turned_high, n);
  });
}

}  // namespace

void rms_norm(const HeadRows& x, const Norm& norm, int64_t begin, int64_t end, float* y) {
  for (int64_t row = begin; row < end; row++) norm_row(row_of(x, row), x.size, norm, y + row * x.size);
}

void rope(const HeadRows& x, const Rotary& rotary, int64_t begin, int64_t end, float* y) {
  for (int64_t row = begin; row < end; row++) {
    int64_t angles = row / x.heads * x.size;
    rope_row(row_of(x, row), x.size, rotary.cos + angles, rotary.sin + angles, y + row * x.size);
  }
}

void norm_rope(const HeadRows& x, const Norm& norm, const Rotary& rotary, int64_t begin, int64_t end, float* y) {
  for (int64_t row = begin; row < end; row++) {
    float* out = y + row * x.size;
    int64_t angles = row / x.heads * x.size;
    norm_row(row_of(x, row), x.size, norm, out);
    rope_row(out, x.size, rotary.cos + angles, rotary.sin + angles, out);
  }
}

// Below -100 nothing is left of silu; `exp` stops growing there, so the gate has to as well.
void silu_and_mul(const float* gate, const float* up, int64_t count, float* y) {
  by_sixteen(count, QWILL_STEP {
    F g = load_first(gate + i, n);
    F silu = max(set1(-100.0f), g) / (set1(1.0f) + exp(zero() - g));
    store_first(y + i, silu * load_first(up + i, n), n);
  });
}

void add(const float* a, const float* b, int64_t count, float* y) {
  by_sixteen(count, QWILL_STEP { store_first(y + i, load_first(a + i, n) + load_first(b + i, n), n); });
}

// One pass keeps the greatest of each block; then only the winner's block is searched for the place.
int64_t argmax(const float* x, int64_t count) {
  constexpr int64_t kBlock = 1024;
  const float lowest = -__builtin_inff();
  float best = lowest;
  int64_t first = 0;
  F nan = zero();
  for (int64_t block = 0; block < count; block += kBlock) {
    F top = set1(lowest);
    by_sixteen(count - block < kBlock ? count - block : kBlock, QWILL_STEP {
      F v = load_first(x + block + i, n, lowest);
      top = max(v, top);
      nan = nan + min(set1(1.0f), max(zero(), v));  // cut to 0 … 1, but NaN where v is
    });
    float greatest = reduce_max(top);
    if (greatest > best) best = greatest, first = block;
  }
  if (__builtin_isnan(reduce_add(nan))) return -1;
  while (x[first] != best) first++;
  return first;
}

}  // namespace qwill::QWILL_ISA
