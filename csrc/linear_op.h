// LinearOp and EmbeddingOp: a whole weight matrix, whose parts may be stored in different formats.
#pragma once

#include <vector>

#include "kernels.h"
#include "op.h"

namespace qwill {

// A packed matrix. The memory belongs to Python.
struct Weight {
  std::vector<WeightPart> parts;
  int64_t columns = 0;
  int64_t rows = 0;
  bool any_quantized = false, any_dense = false;

  void add(const WeightPart& part);
};

struct LinearArguments {
  const float* x;
  int64_t x_stride;
  int64_t tokens;
  LinearOutput out;
};

// Phase 0 quantizes the activations (where a part needs it), phase 1 multiplies.
class LinearOp final : public Op {
 public:
  LinearOp(const Kernels& kernels, const Weight& weight, const LinearArguments& arguments);
  int phases() const override { return 2; }
  int64_t tasks(int phase) override;
  int64_t shared_bytes() override;
  int64_t own_bytes() override;
  void run(int phase, int64_t task, const Workspace& workspace) const override;

 private:
  // A task: panels [begin, end) of one part.
  struct Share {
    const WeightPart* part;
    int64_t begin, end;
    int64_t first_row;
  };
  QuantizedRows quantized(uint8_t* shared) const;

  const Kernels& kernels_;
  const Weight& weight_;
  LinearArguments arguments_;
  int64_t groups_;
  std::vector<Share> shares_;
};

// out[t] = row ids[t] of the table, as float.
class EmbeddingOp final : public Op {
 public:
  EmbeddingOp(const Kernels& kernels, const Weight& weight, const int64_t* ids, int64_t tokens, float* out)
      : kernels_(kernels), weight_(weight), ids_(ids), tokens_(tokens), out_(out) {}
  int64_t tasks(int) override { return div_up(tokens_, kTokensPerTask); }
  void run(int phase, int64_t task, const Workspace& workspace) const override;

 private:
  static constexpr int64_t kTokensPerTask = 16;
  const Kernels& kernels_;
  const Weight& weight_;
  const int64_t* ids_;
  int64_t tokens_;
  float* out_;
};

}  // namespace qwill
