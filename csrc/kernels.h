// Table of contents of the kernels: what each computes, on raw pointers, over a range of rows or tasks.
//
// A kernel knows no framework, no threads, no allocation and no globals: the caller gives it everything, checked. All
// of them exist once per instruction set; `Kernels` is one such set, and `kernels()` (dispatch.cpp) chooses it.
//
// Letters: T tokens, K inputs and N outputs of a linear layer, H heads, D head_dim. Strides count elements, not bytes.
// Activations are float. Every element of a result depends on its own row only and is summed in one fixed order, so it
// is the same bits whatever else is in the step, however the work is cut, and whoever computes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qwill {

constexpr int kPanelRows = 16;    // output rows that are stored interleaved
constexpr int kGroup = 32;        // inputs that share an activation scale, and mostly a weight scale
constexpr int kSuperGroups = 8;   // groups that share a super-scale (256 inputs, as in GGUF's K types)

// How a weight matrix is stored; `qwill/quantization.py` has the layout in words, and writes it.
struct WeightFormat {
  int32_t bits;              // 32 float, 16 bfloat16, 8 or 4: unsigned codes
  int32_t zero;              // quantized: value = scale · (code − zero) + minimum
  int32_t scales_per_group;  // 1, or 2: one for each 16 inputs
  bool super_scales;         // scales (and minima) are int8 codes × one half per 256 inputs, else halves themselves
  bool has_minimum;
};

// Rows [0, rows) × inputs of one format, in panels of 16 rows; the last panel is filled up with zeros.
struct WeightPart {
  WeightFormat format;
  const uint8_t* data;
  int64_t rows;
  int64_t columns;      // K
  int64_t panel_bytes;  // from one panel to the next
};

// Activations of T rows as int8, in groups of 32 along K (padded with zeros to whole groups).
struct QuantizedRows {
  int8_t* codes;    // (T, groups * 32)
  float* scales;    // (T, groups): value = scale · code
  int32_t* sums;    // (T, groups, 2): sums of the codes of each half group
  int64_t groups;
};

struct LinearOutput {
  float* y;               // (T, >= rows), written in [row of part] columns
  int64_t stride;
  const float* bias;      // (rows) or null
  const float* residual;  // like y, added last, or null; not y itself
  int64_t residual_stride;
};

// Memory of quantized_linear: a panel's codes, at worst as two nibbles each, its scales and its minima.
constexpr int64_t linear_scratch_bytes(int64_t columns) {
  int64_t groups = (columns + kGroup - 1) / kGroup;
  return groups * kPanelRows * (2 * kGroup + 2 * 2 * (int64_t)sizeof(float));
}

// x (T, H, size), which may be a view into wider rows. A kernel sees T · H rows: row t · H + h is head h of token t.
struct HeadRows {
  const float* x;
  int64_t heads;
  int64_t size;
  int64_t token_stride;
  int64_t head_stride;
};

struct Norm {
  const float* weight;  // (size)
  float eps;
};

struct Rotary {
  const float* cos;  // (T, size)
  const float* sin;  // (T, size)
};


// --- attention ---

constexpr int64_t kChunk = 128;     // keys of a context that are weighed together, by absolute position
constexpr int64_t kTile = 32;       // keys that are widened to float at a time
constexpr int64_t kRecordHead = 16; // floats before the values of a record

enum class CacheType : int32_t { float32, bfloat16, int8 };

// Keys or values: head h of slot s lies at data[s · stride + h · head_dim].
struct CacheRows {
  void* data;
  float* scales;  // int8: value = scales[s · kv_heads + h] · code; else null
  int64_t stride;
  CacheType type;
};

struct AttentionHeads {
  int64_t kv_heads;
  int64_t per_kv;  // query heads that share a key-value head
  int64_t head_dim;
  float scale;     // of q · k
};

// Neighbouring tokens of one request, with some of its key-value heads.
struct AttentionShare {
  const float* q;  // of the first token, head 0
  int64_t q_stride;
  CacheRows keys, values;
  const int32_t* blocks;  // the context's blocks in order; null: position p lies in slot p
  int64_t block_size;
  AttentionHeads heads;
  int64_t position;  // of the first token; the one at position p sees positions 0 … p
  int64_t tokens;
  int64_t head_begin, head_end;
};

// What one query found in one chunk, or in several: the greatest score, the sum of the weights e^(score − greatest),
// and from kRecordHead on the values, summed with these weights, padded to whole vectors.
constexpr int64_t attention_width(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
constexpr int64_t attention_record(int64_t head_dim) { return kRecordHead + attention_width(head_dim); }
constexpr int64_t attention_chunks(int64_t context) { return (context + kChunk - 1) / kChunk; }
// Memory of attend_chunk and attend_all for a share of `rows` = tokens · query heads.
constexpr int64_t attention_scratch_bytes(int64_t rows, int64_t head_dim) {
  int64_t width = attention_width(head_dim), record = attention_record(head_dim);
  int64_t indices = 2 * kChunk + kTile, floats = 2 * kChunk + kTile * width + rows * (width + kChunk + 2 * record);
  return indices * (int64_t)sizeof(int64_t) + floats * (int64_t)sizeof(float);
}

struct Kernels {
  const char* isa;

  // --- linear.cpp ---
  // Rows [begin, end) of x (row stride x_stride, K columns) to int8. A row with a non-finite value gets NaN scales.
  void (*quantize_rows)(const float* x, int64_t x_stride, int64_t columns, int64_t begin, int64_t end, QuantizedRows out);
  // y = x Wᵀ (+ bias + residual) for panels [begin, end) of one part; `scratch` holds linear_scratch_bytes(columns).
  void (*quantized_linear)(const WeightPart& part, const QuantizedRows& x, int64_t tokens, int64_t begin, int64_t end,
                           const LinearOutput& out, uint8_t* scratch);
  void (*float_linear)(const WeightPart& part, const float* x, int64_t x_stride, int64_t tokens, int64_t begin,
                       int64_t end, const LinearOutput& out);
  // One row of a packed table, dequantized to float: out (columns).
  void (*embedding)(const WeightPart& part, int64_t row, float* out);

  // --- elementwise.cpp: formulas in qwill/ops/reference.py; y (T, H, size) is contiguous ---
  void (*rms_norm)(const HeadRows& x, const Norm& norm, int64_t begin, int64_t end, float* y);
  void (*rope)(const HeadRows& x, const Rotary& rotary, int64_t begin, int64_t end, float* y);
  // rms_norm, then rope, to the bit.
  void (*norm_rope)(const HeadRows& x, const Norm& norm, const Rotary& rotary, int64_t begin, int64_t end, float* y);
  void (*silu_and_mul)(const float* gate, const float* up, int64_t count, float* y);
  void (*add)(const float* a, const float* b, int64_t count, float* y);
  // The first place of the greatest of x (count ≥ 1); -1 where one of them is NaN.
  int64_t (*argmax)(const float* x, int64_t count);

  // --- bandwidth.cpp ---
  // Reads floats and adds them up, as fast as memory gives them.
  float (*read_floats)(const float* x, int64_t count);

  // --- attention.cpp ---
  // Keys or values of tokens [begin, end) to their slots, rounded to the cache's type.
  void (*write_cache)(const float* x, int64_t x_stride, const int64_t* slots, int64_t begin, int64_t end,
                      const AttentionHeads& heads, const CacheRows& rows);
  // One chunk for every row of a share that sees some of it: records (key-value heads, tokens, per_kv).
  void (*attend_chunk)(const AttentionShare& share, int64_t chunk, float* records, uint8_t* scratch);
  // The whole context: out (tokens, all query heads, head_dim), of the first token, head 0.
  void (*attend_all)(const AttentionShare& share, float* out, int64_t out_stride, uint8_t* scratch);
  // One query's records of all chunks, merged in order (into the first one): out (head_dim).
  void (*merge_chunks)(float* records, int64_t record_stride, int64_t chunks, int64_t head_dim, float* out);
};

}  // namespace qwill
