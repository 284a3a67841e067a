#include "linear_op.h"

#include <algorithm>

namespace qwill {
namespace {

constexpr int64_t kQuantizedTokensPerTask = 8;
// Enough work to be worth a task: memory to read when there are few tokens, arithmetic when there are many.
constexpr int64_t kBytesPerTask = 96 * 1024;
constexpr int64_t kMostTokensPerWeightByte = 32;

}  // namespace

void Weight::add(const WeightPart& part) {
  parts.push_back(part);
  rows += part.rows;
  columns = part.columns;
  (part.format.bits <= 8 ? any_quantized : any_dense) = true;
}

LinearOp::LinearOp(const Kernels& kernels, const Weight& weight, const LinearArguments& arguments)
    : kernels_(kernels), weight_(weight), arguments_(arguments), groups_(div_up(weight.columns, kGroup)) {
  int64_t reuse = std::clamp<int64_t>(arguments.tokens, 1, kMostTokensPerWeightByte);
  int64_t first_row = 0;
  for (const WeightPart& part : weight.parts) {
    int64_t panels = div_up(part.rows, kPanelRows);
    int64_t step = std::max<int64_t>(1, kBytesPerTask / (part.panel_bytes * reuse));
    for (int64_t begin = 0; begin < panels; begin += step)
      shares_.push_back({&part, begin, std::min(begin + step, panels), first_row});
    first_row += part.rows;
  }
}

int64_t LinearOp::tasks(int phase) {
  if (phase == 0) return weight_.any_quantized ? div_up(arguments_.tokens, kQuantizedTokensPerTask) : 0;
  return static_cast<int64_t>(shares_.size());
}

int64_t LinearOp::shared_bytes() {
  int64_t per_group = kGroup + sizeof(float) + 2 * sizeof(int32_t);
  return weight_.any_quantized ? round_up(arguments_.tokens * groups_, 16) * per_group : 0;
}

int64_t LinearOp::own_bytes() { return weight_.any_quantized ? linear_scratch_bytes(weight_.columns) : 0; }

QuantizedRows LinearOp::quantized(uint8_t* shared) const {
  int64_t all = round_up(arguments_.tokens * groups_, 16);
  auto* scales = reinterpret_cast<float*>(shared + all * kGroup);
  return {reinterpret_cast<int8_t*>(shared), scales, reinterpret_cast<int32_t*>(scales + all), groups_};
}

void LinearOp::run(int phase, int64_t task, const Workspace& workspace) const {
  const LinearArguments& a = arguments_;
  QuantizedRows x = quantized(workspace.shared);
  if (phase == 0) {
    Range rows(task, kQuantizedTokensPerTask, a.tokens);
    return kernels_.quantize_rows(a.x, a.x_stride, weight_.columns, rows.begin, rows.end, x);
  }
  const Share& share = shares_[static_cast<size_t>(task)];
  LinearOutput out = a.out;
  out.y += share.first_row;
  if (out.bias) out.bias += share.first_row;
  if (out.residual) out.residual += share.first_row;
  if (share.part->format.bits <= 8)
    kernels_.quantized_linear(*share.part, x, a.tokens, share.begin, share.end, out, workspace.own);
  else
    kernels_.float_linear(*share.part, a.x, a.x_stride, a.tokens, share.begin, share.end, out);
}

void EmbeddingOp::run(int, int64_t task, const Workspace&) const {
  Range range(task, kTokensPerTask, tokens_);
  for (int64_t t = range.begin; t < range.end; t++) {
    int64_t row = ids_[t];
    for (const WeightPart& part : weight_.parts) {
      if (row < part.rows) {
        kernels_.embedding(part, row, out_ + t * weight_.columns);
        break;
      }
      row -= part.rows;
    }
  }
}

}  // namespace qwill
