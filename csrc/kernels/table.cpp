// The kernels of one instruction set. A constant: nothing of an unsupported set may run, not even at start-up.
#include "isa.h"

#define QWILL_TEXT(name) #name
#define QWILL_NAME(name) QWILL_TEXT(name)

namespace qwill::QWILL_ISA {

extern constexpr Kernels table = {
    .isa = QWILL_NAME(QWILL_ISA),
    .quantize_rows = quantize_rows,
    .quantized_linear = quantized_linear,
    .float_linear = float_linear,
    .embedding = embedding,
};

}  // namespace qwill::QWILL_ISA
