// Grouped-query attention over a paged cache, and the writing of that cache.
//
// A context is cut by absolute position into chunks of kChunk keys. A query's scores over one chunk are computed, made
// into weights e^(score - greatest), and the chunk's values summed with them, key after key; chunks are then merged in
// order. Which queries, heads and chunks are computed together changes none of these operations, so a query's result
// is the same bits in decode, in prefill, and however either is cut. No key beyond a query's own position is touched.
//
// Keys and values are widened to float a tile at a time, which all queries of the tile then use from the nearest cache.
// Rows of a share stand head after key-value head, then token after token, then the query heads that share it.
#include "isa.h"

namespace qwill::QWILL_ISA {
namespace {

// Queries × keys, and queries × vectors of values, whose sums stay in registers.
#if defined(QWILL_AVX512)
constexpr int kQueries = 4, kKeys = 4, kVectors = 4;
#elif defined(QWILL_AVX2)
constexpr int kQueries = 3, kKeys = 2, kVectors = 2;
#else
constexpr int kQueries = 1, kKeys = 1, kVectors = 1;
#endif

constexpr float kLowest = -__builtin_inff();

QWILL_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
QWILL_INLINE int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

// --- the cache ---

QWILL_INLINE F widen(const float* p) { return load(p); }
QWILL_INLINE F widen(const uint16_t* p) { return load_bf16(p); }
QWILL_INLINE F widen(const int8_t* p) { return load_i8(p); }

template <class T>
QWILL_INLINE void widen_row(const T* row, F scale, int64_t head_dim, float* out) {
  int64_t d = 0;
  for (; d + 16 <= head_dim; d += 16) store(out + d, widen(row + d) * scale);
  if (d == head_dim) return;
  T last[16] = {};
  for (int64_t i = 0; d + i < head_dim; i++) last[i] = row[d + i];
  store(out + d, widen(last) * scale);
}

// Slots of one head to float, `width` apart; what is needed after them is asked for on the way.
template <class T>
void widen_tile(const CacheRows& rows, const int64_t* slots, int64_t count, int64_t soon, int64_t head,
                const AttentionHeads& heads, float* out) {
  const T* data = (const T*)rows.data + head * heads.head_dim;
  int64_t width = attention_width(heads.head_dim), row_bytes = heads.head_dim * (int64_t)sizeof(T);
  for (int64_t i = 0; i < count; i++) {
    if (i + kTile < soon) {
      const char* next = (const char*)(data + slots[i + kTile] * rows.stride);
      for (int64_t byte = 0; byte < row_bytes; byte += 64) prefetch(next + byte);
    }
    float scale = rows.scales ? rows.scales[slots[i] * heads.kv_heads + head] : 1.0f;
    widen_row(data + slots[i] * rows.stride, set1(scale), heads.head_dim, out + i * width);
  }
}

void widen_tile(const CacheRows& rows, const int64_t* slots, int64_t count, int64_t soon, int64_t head,
                const AttentionHeads& heads, float* out) {
  switch (rows.type) {
    case CacheType::float32: return widen_tile<float>(rows, slots, count, soon, head, heads, out);
    case CacheType::bfloat16: return widen_tile<uint16_t>(rows, slots, count, soon, head, heads, out);
    case CacheType::int8: return widen_tile<int8_t>(rows, slots, count, soon, head, heads, out);
  }
}

void store_bf16_row(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; i++) to[i] = float_to_bf16(from[i]);
}

// value = scale · code. A row with a non-finite value gets the scale NaN.
float store_int8_row(const float* from, int64_t count, int8_t* to) {
  F most = zero(), finite = zero();
  for (int64_t d = 0; d < count; d += 16) {
    F x = load_first(from + d, count - d);
    most = max(most, abs(x));
    finite = fma(x, zero(), finite);
  }
  float bound = reduce_max(most), inverse = bound > 1e-30f ? 127.0f / bound : 0.0f;
  for (int64_t d = 0; d < count; d += 16) {
    int8_t codes[16];
    store_i8(codes, to_int(load_first(from + d, count - d) * set1(inverse)));
    for (int64_t i = 0; i < 16 && d + i < count; i++) to[d + i] = codes[i];
  }
  return bound / 127.0f + reduce_add(finite);
}

// --- one chunk ---

struct Scratch {
  float* q;        // (rows, width): queries, scaled, padded with zeros
  float* scores;   // (rows, kChunk): scores, then weights
  float* tile;     // (kTile, width)
  float* results;  // (rows, record)
  float* merged;   // (rows, record)
  int64_t* slots;  // (kChunk)
  Scratch(uint8_t* memory, int64_t rows, int64_t head_dim) {
    int64_t width = attention_width(head_dim), record = attention_record(head_dim);
    slots = (int64_t*)memory;
    tile = (float*)(slots + kChunk);
    q = tile + kTile * width;
    scores = q + rows * width;
    results = scores + rows * kChunk;
    merged = results + rows * record;
  }
};

// The keys of one chunk that a share may look at.
struct Keys {
  int64_t begin;  // position of the first
  int64_t count;
};

QWILL_INLINE int64_t rows_per_head(const AttentionShare& s) { return s.tokens * s.heads.per_kv; }

// How many of the chunk's keys a row (of any head) sees.
QWILL_INLINE int64_t seen(const AttentionShare& s, const Keys& keys, int64_t row) {
  return least(s.position + row / s.heads.per_kv + 1 - keys.begin, keys.count);
}

// The first row of a head that sees the key at `position`.
QWILL_INLINE int64_t first_row(const AttentionShare& s, int64_t position) {
  return greatest(0, position - s.position) * s.heads.per_kv;
}

template <int Q, int K>
QWILL_INLINE void dot_products(const float* q, const float* keys, int64_t width, float* scores) {
  F sum[Q][K];
  for (int i = 0; i < Q; i++)
    for (int j = 0; j < K; j++) sum[i][j] = zero();
  for (int64_t d = 0; d < width; d += 16) {
    F key[K];
    for (int j = 0; j < K; j++) key[j] = load(keys + j * width + d);
    for (int i = 0; i < Q; i++) {
      F query = load(q + i * width + d);
      for (int j = 0; j < K; j++) sum[i][j] = fma(query, key[j], sum[i][j]);
    }
  }
  for (int i = 0; i < Q; i++)
    for (int j = 0; j < K; j++) scores[i * kChunk + j] = reduce_add(sum[i][j]);
}

template <int Q>
void score_rows(const float* q, const float* keys, int64_t count, int64_t width, float* scores) {
  int64_t j = 0;
  for (; j + kKeys <= count; j += kKeys) dot_products<Q, kKeys>(q, keys + j * width, width, scores + j);
  for (; j < count; j++) dot_products<Q, 1>(q, keys + j * width, width, scores + j);
}

void score_tile(const float* q, int64_t rows, const float* keys, int64_t count, int64_t width, float* scores) {
  int64_t r = 0;
  for (; r + kQueries <= rows; r += kQueries) score_rows<kQueries>(q + r * width, keys, count, width, scores + r * kChunk);
  for (; r + 2 <= rows; r += 2) score_rows<2>(q + r * width, keys, count, width, scores + r * kChunk);
  for (; r < rows; r++) score_rows<1>(q + r * width, keys, count, width, scores + r * kChunk);
}

// Scores become weights; the greatest score and the weights' sum go to the row's record, whose values start at zero.
void soften_row(float* scores, int64_t count, int64_t width, float* record) {
  F most = set1(kLowest), sum = zero();
  for (int64_t j = 0; j < count; j += 16) most = max(most, load_first(scores + j, count - j, kLowest));
  float bound = reduce_max(most);
  for (int64_t j = 0; j < count; j += 16) {
    F weight = exp(load_first(scores + j, count - j) - set1(bound));
    store_first(scores + j, weight, count - j);
    sum = sum + load_first(scores + j, count - j);
  }
  record[0] = bound;
  record[1] = reduce_add(sum);
  for (int64_t d = 0; d < width; d += 16) store(record + kRecordHead + d, zero());
}

template <int Q, int W>
QWILL_INLINE void add_values(const float* weights, const float* values, int64_t count, int64_t width, float* sums) {
  int64_t record = width + kRecordHead;
  F sum[Q][W];
  for (int i = 0; i < Q; i++)
    for (int w = 0; w < W; w++) sum[i][w] = load(sums + i * record + 16 * w);
  for (int64_t j = 0; j < count; j++) {
    F value[W];
    for (int w = 0; w < W; w++) value[w] = load(values + j * width + 16 * w);
    for (int i = 0; i < Q; i++) {
      F weight = set1(weights[i * kChunk + j]);
      for (int w = 0; w < W; w++) sum[i][w] = fma(weight, value[w], sum[i][w]);
    }
  }
  for (int i = 0; i < Q; i++)
    for (int w = 0; w < W; w++) store(sums + i * record + 16 * w, sum[i][w]);
}

template <int Q>
void add_rows(const float* weights, const float* values, int64_t count, int64_t width, float* sums) {
  int64_t d = 0;
  for (; d + 16 * kVectors <= width; d += 16 * kVectors)
    add_values<Q, kVectors>(weights, values + d, count, width, sums + d);
  for (; d < width; d += 16) add_values<Q, 1>(weights, values + d, count, width, sums + d);
}

// Q neighbouring rows: the keys that all of them see together, then each row's own.
template <int Q>
void add_neighbours(const AttentionShare& s, const Keys& keys, int64_t row, int64_t tile, const Scratch& scratch,
                    float* weights, float* sums) {
  int64_t width = attention_width(s.heads.head_dim);
  int64_t common = least(seen(s, keys, row) - tile, kTile);
  add_rows<Q>(weights + tile, scratch.tile, common, width, sums);
  for (int i = 1; i < Q; i++) {
    int64_t more = least(seen(s, keys, row + i) - tile, kTile) - common;
    if (more > 0)
      add_rows<1>(weights + i * kChunk + tile + common, scratch.tile + common * width, more, width,
                  sums + i * (width + kRecordHead));
  }
}

void add_tile(const AttentionShare& s, const Keys& keys, int64_t tile, const Scratch& scratch, float* weights,
              float* records) {
  int64_t rows = rows_per_head(s), record = attention_record(s.heads.head_dim), r = first_row(s, keys.begin + tile);
  float* sums = records + kRecordHead;
  for (; r + kQueries <= rows; r += kQueries)
    add_neighbours<kQueries>(s, keys, r, tile, scratch, weights + r * kChunk, sums + r * record);
  for (; r + 2 <= rows; r += 2) add_neighbours<2>(s, keys, r, tile, scratch, weights + r * kChunk, sums + r * record);
  for (; r < rows; r++) add_neighbours<1>(s, keys, r, tile, scratch, weights + r * kChunk, sums + r * record);
}

void scale_queries(const AttentionShare& s, float* out) {
  int64_t head_dim = s.heads.head_dim;
  F scale = set1(s.heads.scale);
  for (int64_t head = s.head_begin; head < s.head_end; head++)
    for (int64_t token = 0; token < s.tokens; token++)
      for (int64_t g = 0; g < s.heads.per_kv; g++, out += attention_width(head_dim)) {
        const float* q = s.q + token * s.q_stride + (head * s.heads.per_kv + g) * head_dim;
        for (int64_t d = 0; d < head_dim; d += 16) store(out + d, load_first(q + d, head_dim - d) * scale);
      }
}

void find_slots(const AttentionShare& s, const Keys& keys, int64_t* slots) {
  for (int64_t i = 0; i < keys.count; i++) {
    int64_t position = keys.begin + i;
    slots[i] = s.blocks ? s.blocks[position / s.block_size] * s.block_size + position % s.block_size : position;
  }
}

// One chunk for rows whose queries are scaled already. Rows that see none of it are left out.
void attend(const AttentionShare& s, int64_t chunk, const Scratch& scratch, float* records) {
  int64_t width = attention_width(s.heads.head_dim), record = attention_record(s.heads.head_dim);
  int64_t rows = rows_per_head(s), heads = s.head_end - s.head_begin;
  Keys keys{chunk * kChunk, least(s.position + s.tokens - chunk * kChunk, kChunk)};
  find_slots(s, keys, scratch.slots);
  for (int64_t tile = 0; tile < keys.count; tile += kTile)
    for (int64_t h = 0; h < heads; h++) {
      int64_t count = least(keys.count - tile, kTile), row = first_row(s, keys.begin + tile), r = h * rows + row;
      widen_tile(s.keys, scratch.slots + tile, count, keys.count - tile, s.head_begin + h, s.heads, scratch.tile);
      score_tile(scratch.q + r * width, rows - row, scratch.tile, count, width, scratch.scores + r * kChunk + tile);
    }
  for (int64_t h = 0; h < heads; h++)
    for (int64_t row = first_row(s, keys.begin); row < rows; row++) {
      int64_t r = h * rows + row;
      soften_row(scratch.scores + r * kChunk, seen(s, keys, row), width, records + r * record);
    }
  for (int64_t tile = 0; tile < keys.count; tile += kTile)
    for (int64_t h = 0; h < heads; h++) {
      int64_t count = least(keys.count - tile, kTile), r = h * rows;
      widen_tile(s.values, scratch.slots + tile, count, keys.count - tile, s.head_begin + h, s.heads, scratch.tile);
      add_tile(s, keys, tile, scratch, scratch.scores + r * kChunk, records + r * record);
    }
}

// --- all chunks ---

// Both get the greater of the two greatest scores, and are added.
void merge_row(float* merged, const float* record, int64_t width) {
  float bound = merged[0] > record[0] ? merged[0] : record[0];
  F old = exp(set1(merged[0] - bound)), fresh = exp(set1(record[0] - bound));
  merged[0] = bound;
  float sums[16];
  store(sums, fma(set1(merged[1]), old, set1(record[1]) * fresh));
  merged[1] = sums[0];
  for (int64_t d = kRecordHead; d < kRecordHead + width; d += 16)
    store(merged + d, fma(load(merged + d), old, load(record + d) * fresh));
}

void finish_row(const float* merged, int64_t head_dim, float* out) {
  for (int64_t d = 0; d < head_dim; d += 16)
    store_first(out + d, load(merged + kRecordHead + d) / set1(merged[1]), head_dim - d);
}

}  // namespace

void write_cache(const float* x, int64_t x_stride, const int64_t* slots, int64_t begin, int64_t end,
                 const AttentionHeads& heads, const CacheRows& rows) {
  for (int64_t token = begin; token < end; token++)
    for (int64_t head = 0; head < heads.kv_heads; head++) {
      int64_t count = heads.head_dim, at = slots[token] * rows.stride + head * count;
      const float* from = x + token * x_stride + head * count;
      if (rows.type == CacheType::bfloat16) store_bf16_row(from, count, (uint16_t*)rows.data + at);
      else if (rows.type == CacheType::int8)
        rows.scales[slots[token] * heads.kv_heads + head] = store_int8_row(from, count, (int8_t*)rows.data + at);
      else
        for (int64_t d = 0; d < count; d++) ((float*)rows.data)[at + d] = from[d];
    }
}

void attend_chunk(const AttentionShare& share, int64_t chunk, float* records, uint8_t* scratch) {
  Scratch memory(scratch, rows_per_head(share) * (share.head_end - share.head_begin), share.heads.head_dim);
  scale_queries(share, memory.q);
  attend(share, chunk, memory, records);
}

void attend_all(const AttentionShare& s, float* out, int64_t out_stride, uint8_t* scratch) {
  int64_t head_dim = s.heads.head_dim, width = attention_width(head_dim), record = attention_record(head_dim);
  int64_t rows = rows_per_head(s), heads = s.head_end - s.head_begin, chunks = attention_chunks(s.position + s.tokens);
  Scratch memory(scratch, rows * heads, head_dim);
  scale_queries(s, memory.q);
  attend(s, 0, memory, memory.merged);
  for (int64_t chunk = 1; chunk < chunks; chunk++) {
    attend(s, chunk, memory, memory.results);
    for (int64_t h = 0; h < heads; h++)
      for (int64_t r = h * rows + first_row(s, chunk * kChunk); r < (h + 1) * rows; r++)
        merge_row(memory.merged + r * record, memory.results + r * record, width);
  }
  for (int64_t h = 0; h < heads; h++)
    for (int64_t r = 0; r < rows; r++) {
      int64_t token = r / s.heads.per_kv, head = (s.head_begin + h) * s.heads.per_kv + r % s.heads.per_kv;
      finish_row(memory.merged + (h * rows + r) * record, head_dim, out + token * out_stride + head * head_dim);
    }
}

void merge_chunks(float* records, int64_t record_stride, int64_t chunks, int64_t head_dim, float* out) {
  for (int64_t chunk = 1; chunk < chunks; chunk++)
    merge_row(records, records + chunk * record_stride, attention_width(head_dim));
  finish_row(records, head_dim, out);
}

}  // namespace qwill::QWILL_ISA
