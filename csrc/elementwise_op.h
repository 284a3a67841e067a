// Ops around the elementwise kernels: how the work is cut into tasks. Pointers and sizes were checked by the caller.
#pragma once

#include <memory>

#include "kernels.h"
#include "op.h"

namespace qwill {

std::unique_ptr<Op> rms_norm_op(const Kernels& kernels, int64_t tokens, HeadRows x, Norm norm, float* y);
std::unique_ptr<Op> rope_op(const Kernels& kernels, int64_t tokens, HeadRows x, Rotary rotary, float* y);
std::unique_ptr<Op> norm_rope_op(const Kernels& kernels, int64_t tokens, HeadRows x, Norm norm, Rotary rotary,
                                 float* y);

// positions (T), frequencies (size / 2) in radians per position -> cos, sin (T, size), times amplitude.
struct Angles {
  const int64_t* positions;
  const float* frequencies;
  float amplitude;
  int64_t size;
};
std::unique_ptr<Op> rotary_angles_op(int64_t tokens, Angles angles, float* cos, float* sin);

// gate_up (T, 2 · features), gate first -> y (T, features).
std::unique_ptr<Op> silu_and_mul_op(const Kernels& kernels, const float* gate_up, int64_t tokens, int64_t features,
                                    float* y);
std::unique_ptr<Op> add_op(const Kernels& kernels, const float* a, const float* b, int64_t count, float* y);

// x (rows, columns) -> places (rows): the first greatest of each row, -1 where the row has a NaN.
std::unique_ptr<Op> argmax_op(const Kernels& kernels, const float* x, int64_t rows, int64_t columns, int64_t* places);

// y[r] = x[places[r]], for rows of `columns` floats.
std::unique_ptr<Op> rows_op(const float* x, const int64_t* places, int64_t rows, int64_t columns, float* y);

// Reads x with all threads.
std::unique_ptr<Op> read_op(const Kernels& kernels, const float* x, int64_t count);

}  // namespace qwill
