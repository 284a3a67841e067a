// The ops between the matrices. Addresses come as integers, sizes and strides count elements.
#include "bindings.h"
#include "elementwise_op.h"

namespace nb = nanobind;

namespace qwill {
namespace {

void rms_norm(Pool& pool, Program* program, const Kernels& kernels, uintptr_t x, int64_t tokens, int64_t heads,
              int64_t size, int64_t token_stride, int64_t head_stride, uintptr_t weight, float eps, uintptr_t y) {
  HeadRows rows{pointer<float>(x), heads, size, token_stride, head_stride};
  submit(pool, program, rms_norm_op(kernels, tokens, rows, {pointer<float>(weight), eps}, pointer<float>(y)));
}

void rope(Pool& pool, Program* program, const Kernels& kernels, uintptr_t x, int64_t tokens, int64_t heads,
          int64_t size, int64_t token_stride, int64_t head_stride, uintptr_t cos, uintptr_t sin, uintptr_t y) {
  HeadRows rows{pointer<float>(x), heads, size, token_stride, head_stride};
  Rotary rotary{pointer<float>(cos), pointer<float>(sin)};
  submit(pool, program, rope_op(kernels, tokens, rows, rotary, pointer<float>(y)));
}

void norm_rope(Pool& pool, Program* program, const Kernels& kernels, uintptr_t x, int64_t tokens, int64_t heads,
               int64_t size, int64_t token_stride, int64_t head_stride, uintptr_t weight, float eps, uintptr_t cos,
               uintptr_t sin, uintptr_t y) {
  HeadRows rows{pointer<float>(x), heads, size, token_stride, head_stride};
  Rotary rotary{pointer<float>(cos), pointer<float>(sin)};
  submit(pool, program, norm_rope_op(kernels, tokens, rows, {pointer<float>(weight), eps}, rotary, pointer<float>(y)));
}

void rotary_angles(Pool& pool, Program* program, uintptr_t positions, int64_t tokens, uintptr_t frequencies,
                   int64_t size, float amplitude, uintptr_t cos, uintptr_t sin) {
  Angles angles{pointer<int64_t>(positions), pointer<float>(frequencies), amplitude, size};
  submit(pool, program, rotary_angles_op(tokens, angles, pointer<float>(cos), pointer<float>(sin)));
}

void silu_and_mul(Pool& pool, Program* program, const Kernels& kernels, uintptr_t gate_up, int64_t tokens,
                  int64_t features, uintptr_t y) {
  submit(pool, program, silu_and_mul_op(kernels, pointer<float>(gate_up), tokens, features, pointer<float>(y)));
}

void add(Pool& pool, Program* program, const Kernels& kernels, uintptr_t a, uintptr_t b, int64_t count, uintptr_t y) {
  submit(pool, program, add_op(kernels, pointer<float>(a), pointer<float>(b), count, pointer<float>(y)));
}

void argmax(Pool& pool, Program* program, const Kernels& kernels, uintptr_t x, int64_t rows, int64_t columns,
            uintptr_t places) {
  submit(pool, program, argmax_op(kernels, pointer<float>(x), rows, columns, pointer<int64_t>(places)));
}

void rows(Pool& pool, Program* program, uintptr_t x, uintptr_t places, int64_t rows, int64_t columns, uintptr_t y) {
  submit(pool, program, rows_op(pointer<float>(x), pointer<int64_t>(places), rows, columns, pointer<float>(y)));
}

void read(Pool& pool, const Kernels& kernels, uintptr_t x, int64_t count) {
  submit(pool, nullptr, read_op(kernels, pointer<float>(x), count));
}

}  // namespace

void bind_elementwise(nb::module_& m) {
  using nb::arg;
  auto pool = arg("pool"), kernels = arg("kernels"), x = arg("x"), y = arg("y");
  auto program = arg("program").none();
  auto tokens = arg("tokens"), heads = arg("heads"), size = arg("size");
  auto token_stride = arg("token_stride"), head_stride = arg("head_stride");
  auto weight = arg("weight"), eps = arg("eps"), cos = arg("cos"), sin = arg("sin");
  auto rows_count = arg("rows"), columns = arg("columns"), places = arg("places");

  m.def("rms_norm", &rms_norm, pool, program, kernels, x, tokens, heads, size, token_stride, head_stride, weight, eps,
        y);
  m.def("rope", &rope, pool, program, kernels, x, tokens, heads, size, token_stride, head_stride, cos, sin, y);
  m.def("norm_rope", &norm_rope, pool, program, kernels, x, tokens, heads, size, token_stride, head_stride, weight, eps,
        cos, sin, y);
  m.def("rotary_angles", &rotary_angles, pool, program, arg("positions"), tokens, arg("frequencies"), size,
        arg("amplitude"), cos, sin);
  m.def("silu_and_mul", &silu_and_mul, pool, program, kernels, arg("gate_up"), tokens, arg("features"), y);
  m.def("add", &add, pool, program, kernels, arg("a"), arg("b"), arg("count"), y);
  m.def("argmax", &argmax, pool, program, kernels, x, rows_count, columns, places);
  m.def("rows", &rows, pool, program, x, places, rows_count, columns, y);
  m.def("read", &read, pool, kernels, x, arg("count"), "Read floats with all threads, to measure how fast it is.");
}

}  // namespace qwill
