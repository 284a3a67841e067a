#include <nanobind/stl/array.h>

#include "bindings.h"
#include "dispatch.h"
#include "linear_op.h"

namespace nb = nanobind;

namespace qwill {
namespace {

// format: bits, zero, scales per group, super scales, minimum.
void add_part(Weight& weight, std::array<int, 5> format, uintptr_t data, int64_t rows, int64_t columns,
              int64_t panel_bytes) {
  WeightFormat f{format[0], format[1], format[2], format[3] != 0, format[4] != 0};
  weight.add({f, pointer<uint8_t>(data), rows, columns, panel_bytes});
}

void linear(Pool& pool, Program* program, const Kernels& kernels, const Weight& weight, uintptr_t x, int64_t x_stride,
            int64_t tokens, uintptr_t y, uintptr_t bias, uintptr_t residual, int64_t residual_stride) {
  LinearOutput out{pointer<float>(y), weight.rows, pointer<float>(bias), pointer<float>(residual), residual_stride};
  LinearArguments arguments{pointer<float>(x), x_stride, tokens, out};
  submit(pool, program, std::make_unique<LinearOp>(kernels, weight, arguments));
}

void embedding(Pool& pool, Program* program, const Kernels& kernels, const Weight& weight, uintptr_t ids,
               int64_t tokens, uintptr_t out) {
  submit(pool, program,
         std::make_unique<EmbeddingOp>(kernels, weight, pointer<int64_t>(ids), tokens, pointer<float>(out)));
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<Weight>(m, "Weight")
      .def(nb::init<>())
      .def("add", &add_part)
      .def_ro("rows", &Weight::rows)
      .def_ro("columns", &Weight::columns);
  m.def("linear", &linear, nb::arg("pool"), nb::arg("program").none(), nb::arg("kernels"), nb::arg("weight"),
        nb::arg("x"), nb::arg("x_stride"), nb::arg("tokens"), nb::arg("y"), nb::arg("bias"), nb::arg("residual"),
        nb::arg("residual_stride"));
  m.def("embedding", &embedding, nb::arg("pool"), nb::arg("program").none(), nb::arg("kernels"), nb::arg("weight"),
        nb::arg("ids"), nb::arg("tokens"), nb::arg("out"));
}

}  // namespace qwill
