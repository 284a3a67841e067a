// Norms, rotary positions, the gate, sums and argmax, against loops in double.
#include <algorithm>

#include "check.h"

namespace qwill::tests {
namespace {

constexpr int64_t kSizes[] = {1, 2, 15, 16, 17, 30, 31, 32, 33, 63, 64, 66, 129};
constexpr int64_t kTokens = 2, kHeads = 3;

// Heads with gaps between them; the last one ends where the memory ends.
struct Heads {
  int64_t size, head_stride = size + 1, token_stride = kHeads * head_stride + 2;
  Floats memory = random_floats((kTokens - 1) * token_stride + (kHeads - 1) * head_stride + size);

  HeadRows rows() const { return {memory.data(), kHeads, size, token_stride, head_stride}; }
  const float* row(int64_t row) const {
    return memory.data() + row / kHeads * token_stride + row % kHeads * head_stride;
  }
};

void check_norm(const Kernels& kernels, int64_t size) {
  Heads heads{size};
  Floats weight = random_floats(size), y = unwritten(kTokens * kHeads * size);
  kernels.rms_norm(heads.rows(), {weight.data(), 1e-6f}, 0, 2, y.data());
  kernels.rms_norm(heads.rows(), {weight.data(), 1e-6f}, 2, kTokens * kHeads, y.data());
  for (int64_t r = 0; r < kTokens * kHeads; r++) {
    const float* x = heads.row(r);
    double squares = 0;
    for (int64_t i = 0; i < size; i++) squares += static_cast<double>(x[i]) * x[i];
    double scale = 1 / std::sqrt(squares / static_cast<double>(size) + 1e-6);
    for (int64_t i = 0; i < size; i++) {
      double expected = weight[i] * x[i] * scale;
      CHECK(close(y[r * size + i], expected, 1e-6 * std::abs(expected)));
    }
  }
}

void check_rope(const Kernels& kernels, int64_t size) {
  Heads heads{size};
  Floats cos = random_floats(kTokens * size), sin = random_floats(kTokens * size);
  Floats y = unwritten(kTokens * kHeads * size);
  kernels.rope(heads.rows(), {cos.data(), sin.data()}, 0, kTokens * kHeads, y.data());
  for (int64_t r = 0; r < kTokens * kHeads; r++)
    for (int64_t i = 0; i < size; i++) {
      const float* x = heads.row(r);
      int64_t angle = r / kHeads * size + i, half = size / 2;
      double turned = i < half ? -x[i + half] : x[i - half];
      CHECK(close(y[r * size + i], static_cast<double>(x[i]) * cos[angle] + turned * sin[angle], 1e-5));
    }
}

void check_norm_rope(const Kernels& kernels, int64_t size) {
  Heads heads{size};
  int64_t rows = kTokens * kHeads;
  Floats weight = random_floats(size), cos = random_floats(kTokens * size), sin = random_floats(kTokens * size);
  Floats normed = unwritten(rows * size), turned = unwritten(rows * size), both = unwritten(rows * size);
  kernels.rms_norm(heads.rows(), {weight.data(), 1e-6f}, 0, rows, normed.data());
  HeadRows contiguous{normed.data(), kHeads, size, kHeads * size, size};
  kernels.rope(contiguous, {cos.data(), sin.data()}, 0, rows, turned.data());
  kernels.norm_rope(heads.rows(), {weight.data(), 1e-6f}, {cos.data(), sin.data()}, 0, rows, both.data());
  CHECK(both == turned);
}

void check_silu_and_add(const Kernels& kernels, int64_t size) {
  Floats gate = random_floats(size, 30.0f), up = random_floats(size), y = unwritten(size), sum = unwritten(size);
  kernels.silu_and_mul(gate.data(), up.data(), size, y.data());
  kernels.add(gate.data(), up.data(), size, sum.data());
  for (int64_t i = 0; i < size; i++) {
    double expected = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
    CHECK(close(y[i], expected, 1e-6 * std::abs(expected) + 1e-30));
    CHECK(sum[i] == gate[i] + up[i]);
  }
}

void check_argmax_and_read(const Kernels& kernels, int64_t size) {
  Floats x = random_floats(size);
  CHECK(kernels.argmax(x.data(), size) == std::max_element(x.begin(), x.end()) - x.begin());
  double sum = 0;
  for (float value : x) sum += value;
  CHECK(close(kernels.read_floats(x.data(), size), sum, 1e-3));
  int64_t place = random_below(size);
  x[place] = kUnwritten;
  CHECK(kernels.argmax(x.data(), size) == -1);
}

}  // namespace

void elementwise_tests(const Kernels& kernels) {
  for (int64_t size : kSizes) {
    check_norm(kernels, size);
    check_silu_and_add(kernels, size);
    check_argmax_and_read(kernels, size);
    if (size % 2) continue;
    check_rope(kernels, size);
    check_norm_rope(kernels, size);
  }
  check_argmax_and_read(kernels, 5000);
}

}  // namespace qwill::tests
