// Writing keys and values to the cache, in the cache's type.
#include "isa.h"

namespace qwill::QWILL_ISA {
namespace {

void store_row(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i++) to[i] = from[i];
}

void store_row(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; i++) to[i] = float_to_bf16(from[i]);
}

// Returns the scale: value = scale · code. A row with a non-finite value gets the scale NaN.
float store_codes(const float* from, int64_t count, int8_t* to) {
  F most = zero(), finite = zero();
  for (int64_t d = 0; d < count; d += 16) {
    F x = load_first(from + d, count - d);
    most = max(most, abs(x));
    finite = fma(x, zero(), finite);
  }
  float bound = reduce_max(most), inverse = bound > 1e-30f ? 127.0f / bound : 0.0f;
  for (int64_t d = 0; d < count; d += 16) {
    int8_t codes[16];
    store_i8(codes, to_int(load_first(from + d, count - d) * set1(inverse)));
    for (int64_t i = 0; i < 16 && d + i < count; i++) to[d + i] = codes[i];
  }
  return bound / 127.0f + reduce_add(finite);
}

}  // namespace

void write_cache(const float* x, int64_t x_stride, const int64_t* slots, int64_t begin, int64_t end,
                 const AttentionHeads& heads, const CacheRows& rows) {
  int64_t count = heads.head_dim;
  for (int64_t token = begin; token < end; token++)
    for (int64_t head = 0; head < heads.kv_heads; head++) {
      int64_t at = slots[token] * rows.stride + head * count;
      const float* from = x + token * x_stride + head * count;
      switch (rows.type) {
        case CacheType::float32: store_row(from, count, (float*)rows.data + at); break;
        case CacheType::bfloat16: store_row(from, count, (uint16_t*)rows.data + at); break;
        case CacheType::int8:
          rows.scales[slots[token] * heads.kv_heads + head] = store_codes(from, count, (int8_t*)rows.data + at);
      }
    }
}

}  // namespace qwill::QWILL_ISA
