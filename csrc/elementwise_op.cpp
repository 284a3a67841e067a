#include "elementwise_op.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace qwill {
namespace {

constexpr int64_t kElementsPerTask = 8192;  // some microseconds of work: enough to be worth a hand-off
constexpr int64_t kGatesPerTask = 2048;     // an exponential costs what ten multiplications cost
constexpr int64_t kAnglesPerTask = 256;     // a sine, fifty
constexpr int64_t kFloatsReadPerTask = 256 * 1024;

// work(begin, end) over [0, count), `step` at a time.
template <class Work>
class RangeOp final : public Op {
 public:
  RangeOp(int64_t count, int64_t step, Work work) : count_(count), step_(step), work_(std::move(work)) {}
  int64_t tasks(int) override { return div_up(count_, step_); }
  void run(int, int64_t task, const Workspace&) const override {
    Range range(task, step_, count_);
    work_(range.begin, range.end);
  }

 private:
  int64_t count_, step_;
  Work work_;
};

template <class Work>
std::unique_ptr<Op> over_range(int64_t count, int64_t step, Work work) {
  return std::make_unique<RangeOp<Work>>(count, step, std::move(work));
}

int64_t rows_per_task(int64_t columns) {
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, columns));
}

// Phase 0 finds the greatest of each piece of a row, phase 1 that of the row.
class ArgmaxOp final : public Op {
 public:
  ArgmaxOp(const Kernels& kernels, const float* x, int64_t rows, int64_t columns, int64_t* places)
      : kernels_(kernels), x_(x), rows_(rows), columns_(columns), pieces_(div_up(columns, kPiece)), places_(places) {}
  int phases() const override { return 2; }
  int64_t tasks(int phase) override { return phase == 0 ? rows_ * pieces_ : 1; }
  int64_t shared_bytes() override { return rows_ * pieces_ * static_cast<int64_t>(sizeof(int64_t)); }
  void run(int phase, int64_t task, const Workspace& workspace) const override {
    auto* found = reinterpret_cast<int64_t*>(workspace.shared);
    if (phase == 0)
      found[task] = best_of_piece(task);
    else
      for (int64_t row = 0; row < rows_; row++) places_[row] = best_of_row(row, found + row * pieces_);
  }

 private:
  int64_t best_of_piece(int64_t task) const {
    Range piece(task % pieces_, kPiece, columns_);
    int64_t place = kernels_.argmax(x_ + task / pieces_ * columns_ + piece.begin, piece.end - piece.begin);
    return place < 0 ? place : place + piece.begin;
  }
  int64_t best_of_row(int64_t row, const int64_t* found) const {
    const float* x = x_ + row * columns_;
    int64_t best = found[0];
    for (int64_t i = 0; i < pieces_; i++) {
      if (found[i] < 0) return -1;
      if (x[found[i]] > x[best]) best = found[i];
    }
    return best;
  }

  static constexpr int64_t kPiece = 16 * 1024;
  const Kernels& kernels_;
  const float* x_;
  int64_t rows_, columns_, pieces_;
  int64_t* places_;
};

void angles_of_row(const Angles& angles, int64_t row, float* cos, float* sin) {
  int64_t half = angles.size / 2;
  auto position = static_cast<float>(angles.positions[row]);
  for (int64_t i = 0; i < half; i++) {
    float angle = position * angles.frequencies[i];
    cos[i] = cos[half + i] = std::cos(angle) * angles.amplitude;
    sin[i] = sin[half + i] = std::sin(angle) * angles.amplitude;
  }
}

}  // namespace

std::unique_ptr<Op> rms_norm_op(const Kernels& kernels, int64_t tokens, HeadRows x, Norm norm, float* y) {
  return over_range(tokens * x.heads, rows_per_task(x.size),
                    [=, &kernels](int64_t begin, int64_t end) { kernels.rms_norm(x, norm, begin, end, y); });
}

std::unique_ptr<Op> rope_op(const Kernels& kernels, int64_t tokens, HeadRows x, Rotary rotary, float* y) {
  return over_range(tokens * x.heads, rows_per_task(x.size),
                    [=, &kernels](int64_t begin, int64_t end) { kernels.rope(x, rotary, begin, end, y); });
}

std::unique_ptr<Op> norm_rope_op(const Kernels& kernels, int64_t tokens, HeadRows x, Norm norm, Rotary rotary,
                                 float* y) {
  return over_range(tokens * x.heads, rows_per_task(x.size), [=, &kernels](int64_t begin, int64_t end) {
    kernels.norm_rope(x, norm, rotary, begin, end, y);
  });
}

std::unique_ptr<Op> rotary_angles_op(int64_t tokens, Angles angles, float* cos, float* sin) {
  int64_t step = std::max<int64_t>(1, kAnglesPerTask / std::max<int64_t>(1, angles.size));
  return over_range(tokens, step, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) angles_of_row(angles, t, cos + t * angles.size, sin + t * angles.size);
  });
}

// Cut at any element, not only between rows: of one token there are features enough for several threads.
std::unique_ptr<Op> silu_and_mul_op(const Kernels& kernels, const float* gate_up, int64_t tokens, int64_t features,
                                    float* y) {
  return over_range(tokens * features, kGatesPerTask, [=, &kernels](int64_t begin, int64_t end) {
    while (begin < end) {
      int64_t row = begin / features, column = begin % features;
      int64_t count = std::min(features - column, end - begin);
      const float* gate = gate_up + row * 2 * features + column;
      kernels.silu_and_mul(gate, gate + features, count, y + begin);
      begin += count;
    }
  });
}

std::unique_ptr<Op> add_op(const Kernels& kernels, const float* a, const float* b, int64_t count, float* y) {
  return over_range(count, kElementsPerTask, [=, &kernels](int64_t begin, int64_t end) {
    kernels.add(a + begin, b + begin, end - begin, y + begin);
  });
}

std::unique_ptr<Op> argmax_op(const Kernels& kernels, const float* x, int64_t rows, int64_t columns, int64_t* places) {
  return std::make_unique<ArgmaxOp>(kernels, x, rows, columns, places);
}

std::unique_ptr<Op> rows_op(const float* x, const int64_t* places, int64_t rows, int64_t columns, float* y) {
  return over_range(rows, rows_per_task(columns), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
      std::memcpy(y + row * columns, x + places[row] * columns, static_cast<size_t>(columns) * sizeof(float));
  });
}

std::unique_ptr<Op> read_op(const Kernels& kernels, const float* x, int64_t count) {
  return over_range(count, kFloatsReadPerTask, [=, &kernels](int64_t begin, int64_t end) {
    [[maybe_unused]] volatile float sum = kernels.read_floats(x + begin, end - begin);
  });
}

}  // namespace qwill
