// Declares each kernel of `Kernels` in the namespace of the instruction set that is being compiled.
#pragma once

#include "../kernels.h"
#include "../simd.h"

namespace qwill::QWILL_ISA {

template <class T>
struct Pointee;
template <class T>
struct Pointee<T*> {
  using type = T;
};
#define QWILL_KERNEL(name) Pointee<decltype(Kernels::name)>::type name
QWILL_KERNEL(quantize_rows);
QWILL_KERNEL(quantized_linear);
QWILL_KERNEL(float_linear);
QWILL_KERNEL(embedding);
QWILL_KERNEL(rms_norm);
QWILL_KERNEL(rope);
QWILL_KERNEL(norm_rope);
QWILL_KERNEL(silu_and_mul);
QWILL_KERNEL(add);
QWILL_KERNEL(argmax);
QWILL_KERNEL(read_floats);
QWILL_KERNEL(write_cache);
QWILL_KERNEL(attend_chunk);
QWILL_KERNEL(attend_all);
QWILL_KERNEL(merge_chunks);
#undef QWILL_KERNEL

}  // namespace qwill::QWILL_ISA
