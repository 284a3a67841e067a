// Linear layers and embedding rows over packed weights.
//
// A panel holds 16 output rows interleaved, so that a vector of 16 lanes is 16 outputs, and no lane is ever summed with
// another: each output is one chain of operations over K, the same for one token and for a thousand.
#include "isa.h"

namespace qwill::QWILL_ISA {

void quantize_rows(const float*, int64_t, int64_t, int64_t, int64_t, QuantizedRows) {}
void quantized_linear(const WeightPart&, const QuantizedRows&, int64_t, int64_t, int64_t, const LinearOutput&, uint8_t*) {}
void float_linear(const WeightPart&, const float*, int64_t, int64_t, int64_t, int64_t, const LinearOutput&) {}
void embedding(const WeightPart&, int64_t, float*) {}

}  // namespace qwill::QWILL_ISA
