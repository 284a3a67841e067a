// The module `qwill._native`: instruction sets, the pool, programs, and the ops of the other binding files.
#include "bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "dispatch.h"

namespace nb = nanobind;
using namespace qwill;

namespace {

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Kernels* set : available_kernels()) names.push_back(set->isa);
  return names;
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("instruction_sets", &instruction_sets, "Names of the instruction sets that run here, best first.");
  nb::class_<Kernels>(m, "Kernels").def_prop_ro("isa", [](const Kernels& k) { return k.isa; });
  m.def("kernels", &kernels, nb::rv_policy::reference, "The kernels of one instruction set; \"\" is the best one.");
  nb::class_<Pool>(m, "Pool").def(nb::init<int>()).def_prop_ro("threads", &Pool::threads);
  nb::class_<Program>(m, "Program")
      .def(nb::init<>())
      .def("__len__", &Program::size)
      .def("run", &Program::run, nb::call_guard<nb::gil_scoped_release>());
  bind_linear(m);
  bind_elementwise(m);
  bind_attention(m);
}
