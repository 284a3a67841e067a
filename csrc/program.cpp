#include "program.h"

#include <utility>

namespace qwill {

void Program::add(std::unique_ptr<Op> op) {
  order_.push_back(op.get());
  ops_.push_back(std::move(op));
}

}  // namespace qwill
