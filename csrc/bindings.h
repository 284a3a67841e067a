// What the binding files share. Pointers come from Python as integers; Python has checked them (qwill/ops/native.py).
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "op.h"
#include "pool.h"
#include "program.h"

namespace qwill {

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Runs an op, without Python's lock; where a program is being recorded, the op is also kept there.
inline void submit(Pool& pool, Program* program, std::unique_ptr<Op> op) {
  nanobind::gil_scoped_release unlocked;
  Op* one = op.get();
  pool.run({&one, 1});
  if (program) program->add(std::move(op));
}

void bind_linear(nanobind::module_& m);
void bind_elementwise(nanobind::module_& m);
void bind_attention(nanobind::module_& m);

}  // namespace qwill
