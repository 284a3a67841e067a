// Linear layers over packed weights.
//
// A panel holds 16 output rows interleaved, so that a vector of 16 lanes is 16 outputs, and no lane is ever summed with
// another: each output is one chain of operations over K, the same for one token and for a thousand. Few tokens read
// the panel as it is packed, which is at the memory's speed; for many it is unpacked once and then used for all.
#include "panel.h"

namespace qwill::QWILL_ISA {
namespace {

// Tokens that are computed together: as many as have their accumulators in registers.
#if defined(QWILL_AVX512)
constexpr int kDenseTile = 8;
template <int planes>
constexpr int kTokens = 8;
#elif defined(QWILL_AVX2)
constexpr int kDenseTile = 3;
template <int planes>
constexpr int kTokens = planes == 2 ? 2 : 4;
#else
constexpr int kDenseTile = 1;
template <int planes>
constexpr int kTokens = 1;
#endif
constexpr int kMostPackedTile = 4;
constexpr int64_t kTokensWorthUnpacking = 8;

struct Tile {  // some consecutive tokens
  const QuantizedRows& x;
  int64_t first;

  const int8_t* codes(int t, int64_t g) const { return x.codes + ((first + t) * x.groups + g) * kGroup; }
  float scale(int t, int64_t g) const { return x.scales[(first + t) * x.groups + g]; }
  int32_t sum(int t, int64_t g, int half) const { return x.sums[2 * ((first + t) * x.groups + g) + half]; }
};

QWILL_INLINE int32_t four_inputs(const int8_t* codes) {
  int32_t x;
  __builtin_memcpy(&x, codes, 4);
  return x;
}

QWILL_INLINE I total(const Dot (&dot)[1]) { return dot_sum(dot[0]); }
QWILL_INLINE I total(const Dot (&dot)[2]) { return dot_sum(dot[0]) + dot_sum16(dot[1]); }

// Adds one group's products to the sums of M tokens.
template <int planes, int halves, bool minimum, int M, class Group>
QWILL_INLINE void add_group(const Group& group, int32_t zero_point, const Tile& tile, int64_t g, F (&sums)[M]) {
  GroupScales<halves> s = group.scales();
#pragma GCC unroll 2
  for (int h = 0; h < halves; h++) {
    Dot dots[M][planes];
#pragma GCC unroll 8
    for (int t = 0; t < M; t++)
      for (int p = 0; p < planes; p++) dots[t][p] = dot_zero();
#pragma GCC unroll 4
    for (int j = h * (4 / halves); j < (h + 1) * (4 / halves); j++) {
      Quad<planes> first, second;
      group.pair(j, first, second);
#pragma GCC unroll 8
      for (int t = 0; t < M; t++) {
        const int8_t* x = tile.codes(t, g) + 8 * j;
        for (int p = 0; p < planes; p++) dots[t][p] = dot_add(dots[t][p], first.plane[p], four_inputs(x));
        for (int p = 0; p < planes; p++) dots[t][p] = dot_add(dots[t][p], second.plane[p], four_inputs(x + 4));
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < M; t++) {
      int32_t x_sum = halves == 2 ? tile.sum(t, g, h) : tile.sum(t, g, 0) + tile.sum(t, g, 1);
      float x_scale = tile.scale(t, g);
      F products = to_float(total(dots[t]) - set1_int(zero_point * x_sum));
      sums[t] = fma(products, s.scale[h] * set1(x_scale), sums[t]);
      if (minimum) sums[t] = fma(s.minimum[h], set1(x_scale * (float)x_sum), sums[t]);
    }
  }
}

// Bias and residual are added last, in this order.
QWILL_INLINE void write(const LinearOutput& out, int64_t token, int64_t row, int64_t rows, F y) {
  int64_t n = rows - row;
  if (out.bias) y = y + load_first(out.bias + row, n);
  if (out.residual) y = y + load_first(out.residual + token * out.residual_stride + row, n);
  store_first(out.y + token * out.stride + row, y, n);
}

struct Place {  // where a panel's results go
  const LinearOutput& out;
  int64_t row, rows;
};

template <class L, int M>
void packed_tile(const WeightPart& part, const uint8_t* panel, const Tile& tile, const Place& place) {
  F sums[M];
  for (F& sum : sums) sum = zero();
  each_group<L>(panel, tile.x.groups, [&](int64_t g, const PackedGroup<L>& group) {
    for (int line = 0; line < L::record; line += 64) prefetch(group.record + 8 * L::record + line);
    add_group<L::planes, L::halves, L::minimum>(group, part.format.zero, tile, g, sums);
  });
  for (int t = 0; t < M; t++) write(place.out, tile.first + t, place.row, place.rows, sums[t]);
}

template <int planes, int halves, bool minimum, int M>
void unpacked_tile(const WeightPart& part, const uint8_t* scratch, const Tile& tile, const Place& place) {
  using Group = UnpackedGroup<planes, halves, minimum>;
  F sums[M];
  for (F& sum : sums) sum = zero();
  for (int64_t g = 0; g < tile.x.groups; g++)
    add_group<planes, halves, minimum>(Group{scratch + g * Group::bytes}, part.format.zero, tile, g, sums);
  for (int t = 0; t < M; t++) write(place.out, tile.first + t, place.row, place.rows, sums[t]);
}

template <class L, int M>
void packed_tokens(const WeightPart& part, const uint8_t* panel, const QuantizedRows& x, int64_t from, int64_t to,
                   const Place& place) {
  for (; from + M <= to; from += M) packed_tile<L, M>(part, panel, {x, from}, place);
  if constexpr (M > 1) packed_tokens<L, M / 2>(part, panel, x, from, to, place);
}

template <int planes, int halves, bool minimum, int M>
void unpacked_tokens(const WeightPart& part, const uint8_t* scratch, const QuantizedRows& x, int64_t from, int64_t to,
                     const Place& place) {
  for (; from + M <= to; from += M) unpacked_tile<planes, halves, minimum, M>(part, scratch, {x, from}, place);
  if constexpr (M > 1) unpacked_tokens<planes, halves, minimum, M / 2>(part, scratch, x, from, to, place);
}

template <class L>
void panels(const WeightPart& part, const QuantizedRows& x, int64_t tokens, int64_t begin, int64_t end,
            const LinearOutput& out, uint8_t* scratch) {
  constexpr int packed_tile_size = kTokens<L::planes> < kMostPackedTile ? kTokens<L::planes> : kMostPackedTile;
  for (int64_t i = begin; i < end; i++) {
    const uint8_t* panel = part.data + i * part.panel_bytes;
    Place place{out, i * kPanelRows, part.rows};
    if (tokens < kTokensWorthUnpacking) {
      packed_tokens<L, packed_tile_size>(part, panel, x, 0, tokens, place);
      continue;
    }
    each_group<L>(panel, x.groups, [&](int64_t g, const PackedGroup<L>& group) {
      unpack_group(group, scratch + g * Unpacked<L>::bytes);
    });
    unpacked_tokens<L::planes, L::halves, L::minimum, kTokens<L::planes>>(part, scratch, x, 0, tokens, place);
  }
}

// Two inputs of 16 rows, of which the first has an even index.
template <int bits>
QWILL_INLINE void load_inputs(const uint8_t* p, F& even, F& odd) {
  if constexpr (bits == 16) {
    load_bf16_pairs((const uint16_t*)p, even, odd);
  } else {
    even = load((const float*)p);
    odd = load((const float*)p + 16);
  }
}

// Even and odd inputs are summed apart, which hides half of the latency of an addition, then together.
template <int bits, int M>
void dense_tile(const WeightPart& part, const uint8_t* panel, const float* x, int64_t x_stride, int64_t token,
                const Place& place) {
  F even[M], odd[M], w0, w1;
  for (int t = 0; t < M; t++) even[t] = odd[t] = zero();
  const float* row = x + token * x_stride;
  int64_t k = 0;
  for (; k + 2 <= part.columns; k += 2, panel += 4 * bits) {
    load_inputs<bits>(panel, w0, w1);
    prefetch(panel + 2048);
#pragma GCC unroll 8
    for (int t = 0; t < M; t++) {
      even[t] = fma(w0, set1(row[t * x_stride + k]), even[t]);
      odd[t] = fma(w1, set1(row[t * x_stride + k + 1]), odd[t]);
    }
  }
  if (k < part.columns) {
    if constexpr (bits == 16) load_inputs<bits>(panel, w0, w1);
    else w0 = load((const float*)panel);
    for (int t = 0; t < M; t++) even[t] = fma(w0, set1(row[t * x_stride + k]), even[t]);
  }
  for (int t = 0; t < M; t++) write(place.out, token + t, place.row, place.rows, even[t] + odd[t]);
}

template <int bits>
void dense_panels(const WeightPart& part, const float* x, int64_t x_stride, int64_t tokens, int64_t begin, int64_t end,
                  const LinearOutput& out) {
  for (int64_t i = begin; i < end; i++) {
    const uint8_t* panel = part.data + i * part.panel_bytes;
    Place place{out, i * kPanelRows, part.rows};
    int64_t t = 0;
    for (; t + kDenseTile <= tokens; t += kDenseTile) dense_tile<bits, kDenseTile>(part, panel, x, x_stride, t, place);
    for (; t < tokens; t++) dense_tile<bits, 1>(part, panel, x, x_stride, t, place);
  }
}

}  // namespace

// Any non-finite value makes 0 · x NaN, and with it the scale: a bad activation is not rounded to a good one.
void quantize_rows(const float* x, int64_t x_stride, int64_t columns, int64_t begin, int64_t end, QuantizedRows out) {
  for (int64_t t = begin; t < end; t++) {
    for (int64_t g = 0; g < out.groups; g++) {
      const float* in = x + t * x_stride + g * kGroup;
      int64_t left = columns - g * kGroup;
      F a = load_first(in, left < 16 ? left : 16), b = left > 16 ? load_first(in + 16, left - 16) : zero();
      float greatest = reduce_max(max(abs(a), abs(b)));
      float finite = reduce_add(fma(a, zero(), b * zero()));
      F inverse = set1(greatest > 1e-30f ? 127.0f / greatest : 0.0f);
      I first = to_int(a * inverse), second = to_int(b * inverse);
      int64_t index = t * out.groups + g;
      store_i8(out.codes + index * kGroup, first);
      store_i8(out.codes + index * kGroup + 16, second);
      out.scales[index] = greatest / 127.0f + finite;
      out.sums[2 * index] = (int32_t)reduce_add(to_float(first));
      out.sums[2 * index + 1] = (int32_t)reduce_add(to_float(second));
    }
  }
}

void quantized_linear(const WeightPart& part, const QuantizedRows& x, int64_t tokens, int64_t begin, int64_t end,
                      const LinearOutput& out, uint8_t* scratch) {
  const WeightFormat& f = part.format;
  auto run = f.bits == 4           ? (f.super_scales  ? panels<Layout<4, 1, true, true>>
                                      : f.has_minimum ? panels<Layout<4, 1, false, true>>
                                                      : panels<Layout<4, 1, false, false>>)
             : !f.super_scales     ? (f.has_minimum ? panels<Layout<8, 1, false, true>> : panels<Layout<8, 1, false, false>>)
             : f.scales_per_group == 1 ? panels<Layout<8, 1, true, true>>
             : f.has_minimum           ? panels<Layout<8, 2, true, true>>
                                       : panels<Layout<8, 2, true, false>>;
  run(part, x, tokens, begin, end, out, scratch);
}

void float_linear(const WeightPart& part, const float* x, int64_t x_stride, int64_t tokens, int64_t begin, int64_t end,
                  const LinearOutput& out) {
  if (part.format.bits == 16) return dense_panels<16>(part, x, x_stride, tokens, begin, end, out);
  dense_panels<32>(part, x, x_stride, tokens, begin, end, out);
}

}  // namespace qwill::QWILL_ISA
