// How one panel of quantized weights is laid out, and how its codes, scales and minima are read into vectors.
#pragma once

#include "isa.h"

namespace qwill::QWILL_ISA {

// Without VNNI 8-bit codes are multiplied as two planes of nibbles (simd.h).
template <int bits>
constexpr int kPlanes = bits == 8 && kBytesAreNibblePairs ? 2 : 1;

template <int planes>
struct Quad {  // four inputs of 16 rows
  B plane[planes];
};

QWILL_INLINE void split(B codes, Quad<1>& quad) { quad.plane[0] = codes; }
QWILL_INLINE void split(B codes, Quad<2>& quad) {
  quad.plane[0] = low_nibbles(codes);
  quad.plane[1] = high_nibbles(codes);
}

// A format as constants. Sizes in bytes: a record holds one group of 32 inputs, a header precedes 8 groups.
template <int bits_, int halves_, bool super_, bool minimum_>
struct Layout {
  static constexpr int bits = bits_, planes = kPlanes<bits_>, halves = halves_;
  static constexpr bool super = super_, minimum = minimum_;
  static constexpr int scale_bytes = super ? kPanelRows : 2 * kPanelRows;  // of one half: int8 codes, or halves
  static constexpr int codes_bytes = kGroup * kPanelRows * bits / 8;
  static constexpr int record = codes_bytes + halves * scale_bytes * (minimum ? 2 : 1);
  static constexpr int header = super ? 2 * kPanelRows * (minimum ? 2 : 1) : 0;
};

template <int halves>
struct GroupScales {
  F scale[halves], minimum[halves];
};

// Codes and scales of one group as they are packed.
template <class L>
struct PackedGroup {
  const uint8_t* record;
  F d, dmin;  // the super-scales

  static QWILL_METHOD PackedGroup at(const uint8_t* record, const uint8_t* header) {
    if constexpr (L::super) return {record, load_f16((const uint16_t*)header), load_f16((const uint16_t*)header + 16)};
    return {record, zero(), zero()};
  }
  // Inputs 8j … 8j + 3 and 8j + 4 … 8j + 7.
  QWILL_METHOD void pair(int j, Quad<L::planes>& first, Quad<L::planes>& second) const {
    if constexpr (L::bits == 4) {
      B both = load_bytes(record + 64 * j);
      first.plane[0] = low_nibbles(both);
      second.plane[0] = high_nibbles(both);
    } else {
      split(load_bytes(record + 128 * j), first);
      split(load_bytes(record + 128 * j + 64), second);
    }
  }
  QWILL_METHOD F factor(int index, F super) const {
    const uint8_t* p = record + L::codes_bytes + index * L::scale_bytes;
    if constexpr (L::super) return super * load_i8((const int8_t*)p);
    return load_f16((const uint16_t*)p);
  }
  QWILL_METHOD GroupScales<L::halves> scales() const {
    GroupScales<L::halves> s;
    for (int h = 0; h < L::halves; h++) {
      s.scale[h] = factor(h, d);
      s.minimum[h] = L::minimum ? factor(L::halves + h, dmin) : zero();
    }
    return s;
  }
};

// The same after unpacking to scratch: quads in order, each plane of its own; then float scales, then float minima.
template <int planes, int halves, bool minimum>
struct UnpackedGroup {
  static constexpr int codes_bytes = kGroup * kPanelRows * planes;
  static constexpr int bytes = codes_bytes + halves * kPanelRows * (int)sizeof(float) * (minimum ? 2 : 1);
  const uint8_t* p;

  QWILL_METHOD void pair(int j, Quad<planes>& first, Quad<planes>& second) const {
    for (int i = 0; i < planes; i++) {
      first.plane[i] = load_bytes(p + 64 * (2 * j * planes + i));
      second.plane[i] = load_bytes(p + 64 * ((2 * j + 1) * planes + i));
    }
  }
  QWILL_METHOD GroupScales<halves> scales() const {
    GroupScales<halves> s;
    const float* factors = (const float*)(p + codes_bytes);
    for (int h = 0; h < halves; h++) {
      s.scale[h] = load(factors + 16 * h);
      s.minimum[h] = minimum ? load(factors + 16 * (halves + h)) : zero();
    }
    return s;
  }
};
template <class L>
using Unpacked = UnpackedGroup<L::planes, L::halves, L::minimum>;

template <class L>
QWILL_INLINE void unpack_group(const PackedGroup<L>& group, uint8_t* out) {
  for (int j = 0; j < 4; j++) {
    Quad<L::planes> quad[2];
    group.pair(j, quad[0], quad[1]);
    for (int q = 0; q < 2; q++)
      for (int i = 0; i < L::planes; i++) store_bytes(out + 64 * ((2 * j + q) * L::planes + i), quad[q].plane[i]);
  }
  GroupScales<L::halves> s = group.scales();
  float* factors = (float*)(out + Unpacked<L>::codes_bytes);
  for (int h = 0; h < L::halves; h++) {
    store(factors + 16 * h, s.scale[h]);
    if (L::minimum) store(factors + 16 * (L::halves + h), s.minimum[h]);
  }
}

// Calls f(g, group) for groups [0, groups) of a panel.
template <class L, class Function>
QWILL_INLINE void each_group(const uint8_t* panel, int64_t groups, Function f) {
  const uint8_t* header = panel;
  for (int64_t g = 0; g < groups; g++) {
    if (L::super && g % kSuperGroups == 0) {
      header = panel;
      panel += L::header;
    }
    f(g, PackedGroup<L>::at(panel, header));
    panel += L::record;
  }
}

}  // namespace qwill::QWILL_ISA
