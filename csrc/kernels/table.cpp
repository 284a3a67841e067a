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
    .rms_norm = rms_norm,
    .rope = rope,
    .norm_rope = norm_rope,
    .silu_and_mul = silu_and_mul,
    .add = add,
    .argmax = argmax,
    .read_floats = read_floats,
    .write_cache = write_cache,
    .attend_chunk = attend_chunk,
    .attend_all = attend_all,
    .merge_chunks = merge_chunks,
};

}  // namespace qwill::QWILL_ISA
