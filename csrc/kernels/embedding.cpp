// One row of a packed table as float: the embedding of a token, also where the table is the tied lm_head's weight.
#include "isa.h"

namespace qwill::QWILL_ISA {
namespace {

// The record and header of group g in a panel, and what lies in them, by the layout of `WeightPart`.
struct Record {
  const WeightFormat& f;
  const uint8_t* panel;

  int64_t scale_bytes() const { return f.super_scales ? kPanelRows : 2 * kPanelRows; }
  int64_t codes_bytes() const { return kGroup * kPanelRows * f.bits / 8; }
  int64_t factors() const { return f.has_minimum ? 2 : 1; }
  int64_t bytes() const { return codes_bytes() + factors() * f.scales_per_group * scale_bytes(); }
  int64_t header_bytes() const { return f.super_scales ? 2 * kPanelRows * factors() : 0; }
  const uint8_t* header(int64_t g) const {
    int64_t block = g / kSuperGroups;
    return panel + block * (header_bytes() + kSuperGroups * bytes());
  }
  const uint8_t* at(int64_t g) const {
    if (!f.super_scales) return panel + g * bytes();
    return header(g) + header_bytes() + g % kSuperGroups * bytes();
  }
  int code(int64_t g, int64_t lane, int64_t k) const {  // input k of the group
    const uint8_t* codes = at(g);
    if (f.bits == 8) return codes[64 * (k / 4) + 4 * lane + k % 4];
    int both = codes[64 * (k / 8) + 4 * lane + k % 4];
    return k % 8 < 4 ? both & 15 : both >> 4;
  }
  // Factor `which` (0 the scale, 1 the minimum) of a half group.
  float factor(int64_t g, int64_t lane, int64_t which, int64_t half) const {
    const uint8_t* p = at(g) + codes_bytes() + (which * f.scales_per_group + half) * scale_bytes();
    if (!f.super_scales) return f16_to_float(((const uint16_t*)p)[lane]);
    return f16_to_float(((const uint16_t*)header(g))[16 * which + lane]) * (float)((const int8_t*)p)[lane];
  }
};

void quantized_row(const WeightPart& part, const uint8_t* panel, int64_t lane, float* out) {
  const WeightFormat& f = part.format;
  Record record{f, panel};
  for (int64_t k = 0; k < part.columns; k++) {
    int64_t g = k / kGroup, half = f.scales_per_group == 2 ? k % kGroup / 16 : 0;
    float value = record.factor(g, lane, 0, half) * (float)(record.code(g, lane, k % kGroup) - f.zero);
    out[k] = f.has_minimum ? value + record.factor(g, lane, 1, half) : value;
  }
}

}  // namespace

void embedding(const WeightPart& part, int64_t row, float* out) {
  const uint8_t* panel = part.data + row / kPanelRows * part.panel_bytes;
  int64_t lane = row % kPanelRows;
  if (part.format.bits <= 8) return quantized_row(part, panel, lane, out);
  for (int64_t k = 0; k < part.columns; k++)
    out[k] = part.format.bits == 32 ? ((const float*)panel)[16 * k + lane]
                                    : bf16_to_float(((const uint16_t*)panel)[32 * (k / 2) + 2 * lane + k % 2]);
}

}  // namespace qwill::QWILL_ISA
