// The paged cache and attention over it, against a softmax in double over what the cache then holds.
#include <algorithm>
#include <cstring>

#include "check.h"

namespace qwill::tests {
namespace {

constexpr int64_t kBlockSize = 16;

struct Shape {
  CacheType type;
  int64_t head_dim, kv_heads, per_kv;
  int64_t context, tokens;  // the last `tokens` of the context look back
};

constexpr Shape kShapes[] = {
    {CacheType::float32, 1, 1, 1, 1, 1},    {CacheType::float32, 17, 2, 3, 40, 5},
    {CacheType::float32, 64, 1, 2, 300, 3}, {CacheType::bfloat16, 16, 2, 1, 33, 33},
    {CacheType::bfloat16, 80, 1, 5, 257, 1}, {CacheType::bfloat16, 15, 3, 2, 256, 2},
    {CacheType::int8, 33, 2, 2, 31, 7},     {CacheType::int8, 128, 1, 2, 520, 2},
};

int64_t size_of(CacheType type) { return type == CacheType::float32 ? 4 : type == CacheType::bfloat16 ? 2 : 1; }

// Keys or values of one layer: blocks in backward order, rows wider than their heads, memory that ends with the last.
struct Cache {
  const Shape& s;
  int64_t blocks = (s.context + kBlockSize - 1) / kBlockSize, row = s.kv_heads * s.head_dim, stride = row + 2;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(((blocks * kBlockSize - 1) * stride + row) * size_of(s.type));
  Floats scales = unwritten(s.type == CacheType::int8 ? blocks * kBlockSize * s.kv_heads : 0);

  CacheRows rows() { return {bytes.data(), scales.empty() ? nullptr : scales.data(), stride, s.type}; }
  int64_t slot(int64_t position) const {
    return (blocks - 1 - position / kBlockSize) * kBlockSize + position % kBlockSize;
  }
  double value(int64_t position, int64_t head, int64_t d) const {
    int64_t at = slot(position) * stride + head * s.head_dim + d;
    if (s.type == CacheType::int8) return scales[slot(position) * s.kv_heads + head] * static_cast<int8_t>(bytes[at]);
    uint32_t bits = 0;
    int64_t size = size_of(s.type);
    std::memcpy(reinterpret_cast<char*>(&bits) + (4 - size), bytes.data() + at * size, static_cast<size_t>(size));
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
};

Floats write(const Kernels& kernels, Cache& cache) {
  const Shape& s = cache.s;
  Floats x = random_floats(s.context * cache.row);
  std::vector<int64_t> slots;
  for (int64_t position = 0; position < s.context; position++) slots.push_back(cache.slot(position));
  slots.shrink_to_fit();
  AttentionHeads heads{s.kv_heads, s.per_kv, s.head_dim, 1.0f};
  kernels.write_cache(x.data(), cache.row, slots.data(), 0, s.context / 2, heads, cache.rows());
  kernels.write_cache(x.data(), cache.row, slots.data(), s.context / 2, s.context, heads, cache.rows());
  return x;
}

void check_written(const Cache& cache, const Floats& x) {
  const Shape& s = cache.s;
  double bound = s.type == CacheType::float32 ? 0 : s.type == CacheType::bfloat16 ? 1.0 / 256 : 1.0 / 32;
  for (int64_t position = 0; position < s.context; position++)
    for (int64_t i = 0; i < cache.row; i++) {
      double expected = x[position * cache.row + i], size = s.type == CacheType::int8 ? 1 : std::abs(expected);
      CHECK(close(cache.value(position, i / s.head_dim, i % s.head_dim), expected, bound * size));
    }
}

// What query head `head` at `position` should see: (head_dim).
std::vector<double> expected_row(const Cache& keys, const Cache& values, const float* q, int64_t head, int64_t position,
                                 double scale) {
  const Shape& s = keys.s;
  std::vector<double> scores(static_cast<size_t>(position + 1), 0.0), out(static_cast<size_t>(s.head_dim), 0.0);
  for (int64_t p = 0; p <= position; p++)
    for (int64_t d = 0; d < s.head_dim; d++) scores[p] += scale * q[d] * keys.value(p, head / s.per_kv, d);
  double greatest = *std::max_element(scores.begin(), scores.end()), sum = 0;
  for (double& score : scores) sum += score = std::exp(score - greatest);
  for (int64_t p = 0; p <= position; p++)
    for (int64_t d = 0; d < s.head_dim; d++) out[d] += scores[p] / sum * values.value(p, head / s.per_kv, d);
  return out;
}

// By chunks, as decode does; to be the same bits as attend_all.
Floats by_chunks(const Kernels& kernels, const AttentionShare& share) {
  int64_t head_dim = share.heads.head_dim, record = attention_record(head_dim), per_kv = share.heads.per_kv;
  int64_t rows = share.tokens * share.heads.kv_heads * per_kv;
  int64_t chunks = attention_chunks(share.position + share.tokens);
  Floats records = unwritten(chunks * rows * record), out = unwritten(rows * head_dim);
  std::vector<uint8_t> scratch(static_cast<size_t>(attention_scratch_bytes(rows, head_dim)));
  for (int64_t chunk = 0; chunk < chunks; chunk++)
    kernels.attend_chunk(share, chunk, records.data() + chunk * rows * record, scratch.data());
  for (int64_t row = 0; row < rows; row++) {
    int64_t head = row / per_kv / share.tokens, token = row / per_kv % share.tokens, g = row % per_kv;
    float* to = out.data() + (token * share.heads.kv_heads * per_kv + head * per_kv + g) * head_dim;
    kernels.merge_chunks(records.data() + row * record, rows * record,
                         attention_chunks(share.position + token + 1), head_dim, to);
  }
  return out;
}

void check(const Kernels& kernels, const Shape& s) {
  Cache keys{s}, values{s};
  check_written(keys, write(kernels, keys));
  check_written(values, write(kernels, values));
  int64_t heads = s.kv_heads * s.per_kv, width = heads * s.head_dim;
  Floats q = random_floats(s.tokens * width), out = unwritten(s.tokens * width);
  std::vector<int32_t> blocks;
  for (int64_t block = keys.blocks - 1; block >= 0; block--) blocks.push_back(static_cast<int32_t>(block));
  blocks.shrink_to_fit();
  float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  AttentionShare share{q.data(), width, keys.rows(), values.rows(), blocks.data(), kBlockSize,
                       {s.kv_heads, s.per_kv, s.head_dim, scale}, s.context - s.tokens, s.tokens, 0, s.kv_heads};
  std::vector<uint8_t> scratch(static_cast<size_t>(attention_scratch_bytes(s.tokens * heads, s.head_dim)));
  kernels.attend_all(share, out.data(), width, scratch.data());
  for (int64_t token = 0; token < s.tokens; token++)
    for (int64_t head = 0; head < heads; head++) {
      int64_t at = token * width + head * s.head_dim;
      std::vector<double> expected = expected_row(keys, values, &q[at], head, share.position + token, scale);
      for (int64_t d = 0; d < s.head_dim; d++) CHECK(close(out[at + d], expected[d], 1e-5));
    }
  CHECK(by_chunks(kernels, share) == out);
}

}  // namespace

void attention_tests(const Kernels& kernels) {
  for (const Shape& shape : kShapes) check(kernels, shape);
}

}  // namespace qwill::tests
