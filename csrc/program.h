// Program: ops that were recorded once, to be run again and again on the same memory.
#pragma once

#include <memory>
#include <vector>

#include "op.h"
#include "pool.h"

namespace qwill {

class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  void add(std::unique_ptr<Op> op);
  void run(Pool& pool) const { pool.run(order_); }
  size_t size() const { return ops_.size(); }

 private:
  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<Op*> order_;
};

}  // namespace qwill
