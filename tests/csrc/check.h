// What the C++ tests share: CHECK, random numbers, and buffers of exactly the size that is promised to a kernel.
//
// Everything runs under the address sanitizer, so a byte read or written beyond such a buffer ends the program.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "kernels.h"

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);          \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)

namespace qwill::tests {

using Floats = std::vector<float>;

constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();

inline Floats unwritten(int64_t count) { return Floats(static_cast<size_t>(count), kUnwritten); }

inline std::mt19937& generator() {
  static std::mt19937 numbers(20261130);
  return numbers;
}

inline int64_t random_below(int64_t bound) {
  return static_cast<int64_t>(generator()() % static_cast<uint32_t>(bound));
}

inline Floats random_floats(int64_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator());
  return values;
}

inline bool close(double got, double expected, double bound) { return std::abs(got - expected) <= bound; }

// One function for each area, called for each instruction set that runs here; pool_tests once.
void elementwise_tests(const Kernels& kernels);
void linear_tests(const Kernels& kernels);
void attention_tests(const Kernels& kernels);
void pool_tests();

}  // namespace qwill::tests
