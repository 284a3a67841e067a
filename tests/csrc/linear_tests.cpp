// Linear layers and embedding rows of every format, against a matrix that is packed here by the layout's description.
#include <cstring>

#include "check.h"

namespace qwill::tests {
namespace {

constexpr WeightFormat kFormats[] = {
    {32, 0, 1, false, false}, {16, 0, 1, false, false}, {4, 8, 1, false, false}, {4, 0, 1, false, true},
    {4, 0, 1, true, true},    {8, 128, 1, false, false}, {8, 0, 1, false, true}, {8, 0, 1, true, true},
    {8, 128, 2, true, false}, {8, 0, 2, true, true},
};
constexpr int64_t kColumns[] = {1, 31, 32, 33, 64, 96, 289};
constexpr int64_t kRows[] = {1, 16, 35};
constexpr int64_t kTokenCounts[] = {1, 2, 3, 5, 9, 33};

struct Half {
  uint16_t bits;
  double value;
};
constexpr Half kHalves[] = {{0x2c00, 0.0625}, {0x3000, 0.125}, {0xa800, -0.03125}, {0x0001, 0x1p-24}};

// Packs random weights of one format; `values` (rows, columns) is what they mean.
class Matrix {
 public:
  Matrix(const WeightFormat& format, int64_t rows, int64_t columns)
      : format_(format), rows_(rows), columns_(columns), values(static_cast<size_t>(rows * columns)) {
    int64_t panels = (rows + kPanelRows - 1) / kPanelRows;
    for (int64_t panel = 0; panel < panels; panel++) format.bits >= 16 ? dense(panel) : quantized(panel);
    bytes_.shrink_to_fit();
    part_ = {format, bytes_.data(), rows, columns, static_cast<int64_t>(bytes_.size()) / panels};
  }
  const WeightPart& part() const { return part_; }
  double value(int64_t row, int64_t column) const { return values[row * columns_ + column]; }

 private:
  struct Factors {  // of one half group: [lane]
    double value[kPanelRows];
  };

  void put(uint16_t bits) {
    bytes_.push_back(static_cast<uint8_t>(bits));
    bytes_.push_back(static_cast<uint8_t>(bits >> 8));
  }
  Factors put_halves() {
    Factors f;
    for (double& value : f.value) {
      Half half = kHalves[random_below(4)];
      put(half.bits);
      value = half.value;
    }
    return f;
  }
  Factors put_factors(const Factors& super) {
    if (!format_.super_scales) return put_halves();
    Factors f;
    for (int lane = 0; lane < kPanelRows; lane++) {
      auto code = static_cast<int8_t>(random_below(256) - 128);
      bytes_.push_back(static_cast<uint8_t>(code));
      f.value[lane] = super.value[lane] * code;
    }
    return f;
  }
  void keep(int64_t panel, int64_t lane, int64_t column, double value) {
    int64_t row = panel * kPanelRows + lane;
    if (row < rows_ && column < columns_) values[row * columns_ + column] = value;
  }

  void dense(int64_t panel) {
    int64_t pair = format_.bits == 16 ? 2 : 1;
    for (int64_t k = 0; k < columns_; k += pair)
      for (int64_t lane = 0; lane < kPanelRows; lane++)
        for (int64_t i = 0; i < pair; i++) {
          float value = static_cast<float>(random_below(255) - 127) / 64;  // exact in bfloat16
          uint32_t bits;
          std::memcpy(&bits, &value, sizeof bits);
          if (format_.bits == 32) put(static_cast<uint16_t>(bits));
          put(static_cast<uint16_t>(bits >> 16));
          keep(panel, lane, k + i, value);
        }
  }

  void quantized(int64_t panel) {
    Factors super{}, super_minimum{};
    for (int64_t g = 0; g * kGroup < columns_; g++) {
      if (format_.super_scales && g % kSuperGroups == 0) {
        super = put_halves();
        if (format_.has_minimum) super_minimum = put_halves();
      }
      int codes[kPanelRows][kGroup];
      put_codes(codes);
      Factors scales[2] = {}, minima[2] = {};
      for (int h = 0; h < format_.scales_per_group; h++) scales[h] = put_factors(super);
      for (int h = 0; format_.has_minimum && h < format_.scales_per_group; h++) minima[h] = put_factors(super_minimum);
      for (int64_t lane = 0; lane < kPanelRows; lane++)
        for (int64_t k = 0; k < kGroup; k++) {
          int64_t h = format_.scales_per_group == 2 ? k / 16 : 0;
          double value = scales[h].value[lane] * (codes[lane][k] - format_.zero) + minima[h].value[lane];
          keep(panel, lane, g * kGroup + k, value);
        }
    }
  }
  void put_codes(int (&codes)[kPanelRows][kGroup]) {
    int per_byte = 8 / format_.bits;
    for (int64_t j = 0; j < kGroup / (4 * per_byte); j++)
      for (int64_t lane = 0; lane < kPanelRows; lane++)
        for (int64_t i = 0; i < 4; i++) {
          auto byte = static_cast<uint8_t>(random_below(256));
          bytes_.push_back(byte);
          if (per_byte == 1) codes[lane][4 * j + i] = byte;
          else codes[lane][8 * j + i] = byte & 15, codes[lane][8 * j + 4 + i] = byte >> 4;
        }
  }

  WeightFormat format_;
  int64_t rows_, columns_;
  std::vector<uint8_t> bytes_;
  std::vector<double> values;
  WeightPart part_{};
};

// Activations as the kernel is to see them, quantized or not; `values` (tokens, columns) is what they mean.
struct Activations {
  int64_t tokens, columns, stride = columns + 3, groups = (columns + kGroup - 1) / kGroup;
  Floats x = random_floats((tokens - 1) * stride + columns);
  std::vector<int8_t> codes = std::vector<int8_t>(tokens * groups * kGroup, 99);
  Floats scales = unwritten(tokens * groups);
  std::vector<int32_t> sums = std::vector<int32_t>(tokens * groups * 2, 99);

  QuantizedRows quantized() { return {codes.data(), scales.data(), sums.data(), groups}; }
  double value(int64_t token, int64_t k, bool as_codes) const {
    if (!as_codes) return x[token * stride + k];
    return static_cast<double>(scales[token * groups + k / kGroup]) * codes[token * groups * kGroup + k];
  }
};

void check_quantized(const Activations& a) {
  for (int64_t t = 0; t < a.tokens; t++)
    for (int64_t g = 0; g < a.groups; g++) {
      int sums[2] = {0, 0};
      for (int64_t k = 0; k < kGroup; k++) {
        int64_t column = g * kGroup + k;
        int code = a.codes[(t * a.groups + g) * kGroup + k];
        sums[k / 16] += code;
        double expected = column < a.columns ? a.x[t * a.stride + column] : 0;
        double scale = a.scales[t * a.groups + g];
        CHECK(close(scale * code, expected, 0.5001 * scale));
      }
      CHECK(sums[0] == a.sums[2 * (t * a.groups + g)] && sums[1] == a.sums[2 * (t * a.groups + g) + 1]);
    }
}

void check_product(const Kernels& kernels, const Matrix& matrix, int64_t tokens) {
  const WeightPart& part = matrix.part();
  Activations a{tokens, part.columns};
  bool as_codes = part.format.bits <= 8;
  Floats y = unwritten(tokens * part.rows), bias = random_floats(part.rows);
  Floats residual = random_floats(tokens * part.rows);
  LinearOutput out{y.data(), part.rows, bias.data(), residual.data(), part.rows};
  int64_t panels = (part.rows + kPanelRows - 1) / kPanelRows, middle = panels / 2;
  std::vector<uint8_t> scratch(static_cast<size_t>(linear_scratch_bytes(part.columns)));
  if (as_codes) {
    kernels.quantize_rows(a.x.data(), a.stride, part.columns, 0, tokens, a.quantized());
    check_quantized(a);
    kernels.quantized_linear(part, a.quantized(), tokens, 0, middle, out, scratch.data());
    kernels.quantized_linear(part, a.quantized(), tokens, middle, panels, out, scratch.data());
  } else {
    kernels.float_linear(part, a.x.data(), a.stride, tokens, 0, middle, out);
    kernels.float_linear(part, a.x.data(), a.stride, tokens, middle, panels, out);
  }
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t n = 0; n < part.rows; n++) {
      double expected = bias[n] + residual[t * part.rows + n], size = std::abs(expected) + 1;
      for (int64_t k = 0; k < part.columns; k++) {
        double product = matrix.value(n, k) * a.value(t, k, as_codes);
        expected += product;
        size += std::abs(product);
      }
      CHECK(close(y[t * part.rows + n], expected, 1e-5 * size));
    }
}

void check_embedding(const Kernels& kernels, const Matrix& matrix) {
  const WeightPart& part = matrix.part();
  for (int64_t row = 0; row < part.rows; row++) {
    Floats out = unwritten(part.columns);
    kernels.embedding(part, row, out.data());
    for (int64_t k = 0; k < part.columns; k++)
      CHECK(close(out[k], matrix.value(row, k), 1e-6 * std::abs(matrix.value(row, k)) + 1e-4));
  }
}

}  // namespace

void linear_tests(const Kernels& kernels) {
  for (const WeightFormat& format : kFormats)
    for (int64_t columns : kColumns)
      for (int64_t rows : kRows) {
        Matrix matrix(format, rows, columns);
        check_embedding(kernels, matrix);
        for (int64_t tokens : kTokenCounts) check_product(kernels, matrix, tokens);
      }
}

}  // namespace qwill::tests
