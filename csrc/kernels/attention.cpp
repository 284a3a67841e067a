// Grouped-query attention over a paged cache.
//
// A context is cut by absolute position into chunks of kChunk keys. A query's scores over one chunk are computed, made
// into weights e^(score - greatest), and the chunk's values summed with them, key after key; chunks are then merged in
// order. Which queries, heads and chunks are computed together changes none of these operations, so a query's result
// is the same bits in decode, in prefill, and however either is cut. Only keys up to a query's own position count.
//
// A few query rows read the cache as it is. For many, keys and values are first widened to float, a tile at a time that
// stays in the nearest cache; widening is exact, so the bits are the same.
// Rows of a share stand key-value head after head, then token after token, then the query heads that share it.
#include "attention_rows.h"

namespace qwill::QWILL_ISA {
namespace {

constexpr float kLowest = -__builtin_inff();

QWILL_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
QWILL_INLINE int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

struct Scratch {
  int64_t* slots;         // (kChunk): of the chunk's keys
  int64_t* offsets;       // (kChunk): where they lie, filled up to whole kKeys
  int64_t* tile_offsets;  // (kTile): where they lie in `tile`
  float* scales;          // (2, kChunk): of int8 keys, then values
  float* tile;            // (kTile, width)
  float* q;               // (rows, width): queries, scaled, padded with zeros
  float* scores;          // (rows, kChunk): scores, then weights
  float* results;         // (rows, record)
  float* merged;          // (rows, record)

  Scratch(uint8_t* memory, int64_t rows, int64_t head_dim) {
    int64_t width = attention_width(head_dim), record = attention_record(head_dim);
    slots = (int64_t*)memory;
    offsets = slots + kChunk;
    tile_offsets = offsets + kChunk;
    scales = (float*)(tile_offsets + kTile);
    tile = scales + 2 * kChunk;
    q = tile + kTile * width;
    scores = q + rows * width;
    results = scores + rows * kChunk;
    merged = results + rows * record;
    for (int64_t j = 0; j < kTile; j++) tile_offsets[j] = j * width;
  }
};

// The keys of one chunk that a share may look at.
struct Keys {
  int64_t begin;  // position of the first
  int64_t count;
};

QWILL_INLINE int64_t heads_of(const AttentionShare& s) { return s.head_end - s.head_begin; }
QWILL_INLINE int64_t rows_per_head(const AttentionShare& s) { return s.tokens * s.heads.per_kv; }

// Keys that are looked at head after head: few where there are many heads, so that memory is read in order.
QWILL_INLINE int64_t tile_keys(const AttentionShare& s) {
  return greatest(kKeys, kTile / heads_of(s) / kKeys * kKeys);
}

QWILL_INLINE bool is_read_as_it_is(const AttentionShare& s) {
  return rows_per_head(s) <= 2 * kQueries && s.heads.head_dim % 16 == 0;
}

// How many of the chunk's keys a row (of any head) sees.
QWILL_INLINE int64_t seen(const AttentionShare& s, const Keys& keys, int64_t row) {
  return least(s.position + row / s.heads.per_kv + 1 - keys.begin, keys.count);
}

// The first row of a head that sees the key at `position`.
QWILL_INLINE int64_t first_row(const AttentionShare& s, int64_t position) {
  return greatest(0, position - s.position) * s.heads.per_kv;
}

// --- keys and values ---

void find_slots(const AttentionShare& s, const Keys& keys, int64_t* slots) {
  for (int64_t j = 0; j < keys.count && !s.blocks; j++) slots[j] = keys.begin + j;
  if (!s.blocks) return;
  int64_t block = keys.begin / s.block_size, offset = keys.begin % s.block_size;
  for (int64_t j = 0; j < keys.count; block++, offset = 0)
    for (; offset < s.block_size && j < keys.count; offset++, j++) slots[j] = s.blocks[block] * s.block_size + offset;
}

// Filled up with the last one: its score is computed again, and not looked at.
void find_offsets(const int64_t* slots, int64_t count, int64_t stride, int64_t* offsets) {
  for (int64_t j = 0; j < count; j++) offsets[j] = slots[j] * stride;
  for (int64_t j = count; j % kKeys; j++) offsets[j] = offsets[count - 1];
}

const float* find_scales(const CacheRows& rows, const AttentionShare& s, const Scratch& m, int64_t count, int64_t head,
                         float* scales) {
  if (!rows.scales) return nullptr;
  for (int64_t j = 0; j < count; j++) scales[j] = rows.scales[m.slots[j] * s.heads.kv_heads + head];
  return scales;
}

// Asks for the next `rows` of a tile that is needed soon, in the order in which they lie in memory: slot after slot,
// with all heads of each. The machine's own look-ahead recognizes that.
template <class T>
struct Ahead {
  const T* data;
  const int64_t* offsets;
  int64_t slots, heads, head_dim;
  int64_t slot = 0, head = 0;

  void ask_for(int64_t rows) {
    for (; rows > 0 && slot < slots; rows--) {
      const char* row = (const char*)(data + offsets[slot] + head * head_dim);
      for (int64_t byte = 0; byte < head_dim * (int64_t)sizeof(T); byte += 64) prefetch(row + byte);
      if (++head == heads) head = 0, slot++;
    }
  }
};

template <class T>
void widen_rows(Rows<T> rows, int64_t count, int64_t head_dim, float* out) {
  for (int64_t j = 0; j < count; j++) {
    const T* row = rows.data + rows.offsets[j];
    int64_t d = 0;
    for (; d + 16 <= head_dim; d += 16, out += 16) store(out, widen(row + d));
    if (d == head_dim) continue;
    T last[16] = {};
    for (int64_t i = 0; d + i < head_dim; i++) last[i] = row[d + i];
    store(out, widen(last));
    out += 16;
  }
}

// Calls use(rows, tile, count, head) for every tile of the chunk, head by head.
template <class T, class Use>
QWILL_INLINE void for_each_tile(const AttentionShare& s, const Keys& keys, const CacheRows& rows, const Scratch& m,
                                Use use) {
  int64_t step = tile_keys(s), head_dim = s.heads.head_dim;
  find_offsets(m.slots, keys.count, rows.stride, m.offsets);
  const T* data = (const T*)rows.data + s.head_begin * head_dim;
  bool as_it_is = is_read_as_it_is(s);
  for (int64_t tile = 0; tile < keys.count; tile += step) {
    int64_t count = least(keys.count - tile, step), whole = (count + kKeys - 1) / kKeys * kKeys;
    const int64_t* offsets = m.offsets + tile;
    Ahead<T> ahead{data, offsets + step, least(keys.count - tile - step, step), heads_of(s), head_dim};
    for (int64_t h = 0; h < heads_of(s); h++) {
      Rows<T> read{data + h * head_dim, offsets};
      ahead.ask_for(step);
      if (as_it_is) {
        use(read, tile, count, h);
      } else {
        widen_rows(read, whole, head_dim, m.tile);
        use(Rows<float>{m.tile, m.tile_offsets}, tile, count, h);
      }
    }
  }
}

// Calls use(T{}) with the type of the cache's elements.
template <class Use>
QWILL_INLINE void with_type(CacheType type, Use use) {
  switch (type) {
    case CacheType::float32: return use(float{});
    case CacheType::bfloat16: return use(uint16_t{});
    case CacheType::int8: return use(int8_t{});
  }
}

// --- one chunk ---

template <class T>
void score_tile(const float* q, int64_t rows, Rows<T> keys, int64_t count, int64_t width, float* scores) {
  int64_t r = 0;
  for (; r + kQueries <= rows; r += kQueries)
    score_rows<kQueries>(q + r * width, keys, count, width, scores + r * kChunk);
  for (; r + 2 <= rows; r += 2) score_rows<2>(q + r * width, keys, count, width, scores + r * kChunk);
  for (; r < rows; r++) score_rows<1>(q + r * width, keys, count, width, scores + r * kChunk);
}

void score_chunk(const AttentionShare& s, const Keys& keys, const Scratch& m) {
  int64_t width = attention_width(s.heads.head_dim), rows = rows_per_head(s);
  with_type(s.keys.type, [&](auto type) {
    for_each_tile<decltype(type)>(s, keys, s.keys, m, [&](auto tile_rows, int64_t tile, int64_t count, int64_t h) {
      int64_t row = first_row(s, keys.begin + tile), r = h * rows + row;
      score_tile(m.q + r * width, rows - row, tile_rows, count, width, m.scores + r * kChunk + tile);
    });
  });
}

void multiply(float* x, const float* by, int64_t count) {
  for (int64_t j = 0; j < count; j += 16)
    store_first(x + j, load_first(x + j, count - j) * load_first(by + j, count - j), count - j);
}

// Scores become weights; the greatest score and the weights' sum go to the row's record.
void soften_row(float* scores, int64_t count, float* record) {
  F most = set1(kLowest), sum = zero();
  for (int64_t j = 0; j < count; j += 16) most = max(most, load_first(scores + j, count - j, kLowest));
  float bound = reduce_max(most);
  for (int64_t j = 0; j < count; j += 16) {
    store_first(scores + j, exp(load_first(scores + j, count - j) - set1(bound)), count - j);
    sum = sum + load_first(scores + j, count - j);
  }
  record[0] = bound;
  record[1] = reduce_add(sum);
}

// Codes were multiplied as they are; their scales belong to the scores, and to the weights of the values.
void soften_chunk(const AttentionShare& s, const Keys& keys, const Scratch& m, float* records) {
  int64_t record = attention_record(s.heads.head_dim), rows = rows_per_head(s);
  for (int64_t h = 0; h < heads_of(s); h++) {
    const float* key_scales = find_scales(s.keys, s, m, keys.count, s.head_begin + h, m.scales);
    const float* value_scales = find_scales(s.values, s, m, keys.count, s.head_begin + h, m.scales + kChunk);
    for (int64_t row = first_row(s, keys.begin); row < rows; row++) {
      float *scores = m.scores + (h * rows + row) * kChunk, *out = records + (h * rows + row) * record;
      int64_t count = seen(s, keys, row);
      if (key_scales) multiply(scores, key_scales, count);
      soften_row(scores, count, out);
      if (value_scales) multiply(scores, value_scales, count);
      for (int64_t d = kRecordHead; d < record; d += 16) store(out + d, zero());
    }
  }
}

// Q neighbouring rows: the values that all of them see together, then each row's own.
template <int Q, class T>
void add_neighbours(const AttentionShare& s, const Keys& keys, int64_t row, int64_t tile, int64_t count, Rows<T> values,
                    const float* weights, float* sums) {
  int64_t width = attention_width(s.heads.head_dim);
  int64_t common = least(seen(s, keys, row) - tile, count);
  add_rows<Q>(weights, values, common, width, sums);
  for (int i = 1; i < Q; i++) {
    int64_t more = least(seen(s, keys, row + i) - tile, count) - common;
    Rows<T> own{values.data, values.offsets + common};
    if (more > 0) add_rows<1>(weights + i * kChunk + common, own, more, width, sums + i * (width + kRecordHead));
  }
}

template <class T>
void add_tile(const AttentionShare& s, const Keys& keys, int64_t tile, int64_t count, Rows<T> values,
              const float* weights, float* records) {
  int64_t rows = rows_per_head(s), record = attention_record(s.heads.head_dim), r = first_row(s, keys.begin + tile);
  float* sums = records + kRecordHead;
  weights += tile;
  for (; r + kQueries <= rows; r += kQueries)
    add_neighbours<kQueries>(s, keys, r, tile, count, values, weights + r * kChunk, sums + r * record);
  for (; r + 2 <= rows; r += 2)
    add_neighbours<2>(s, keys, r, tile, count, values, weights + r * kChunk, sums + r * record);
  for (; r < rows; r++) add_neighbours<1>(s, keys, r, tile, count, values, weights + r * kChunk, sums + r * record);
}

void add_chunk(const AttentionShare& s, const Keys& keys, const Scratch& m, float* records) {
  int64_t record = attention_record(s.heads.head_dim), rows = rows_per_head(s);
  with_type(s.values.type, [&](auto type) {
    for_each_tile<decltype(type)>(s, keys, s.values, m, [&](auto tile_rows, int64_t tile, int64_t count, int64_t h) {
      add_tile(s, keys, tile, count, tile_rows, m.scores + h * rows * kChunk, records + h * rows * record);
    });
  });
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

// One chunk for rows whose queries are scaled already. Rows that see none of it are left out.
void attend(const AttentionShare& s, int64_t chunk, const Scratch& m, float* records) {
  Keys keys{chunk * kChunk, least(s.position + s.tokens - chunk * kChunk, kChunk)};
  find_slots(s, keys, m.slots);
  score_chunk(s, keys, m);
  soften_chunk(s, keys, m, records);
  add_chunk(s, keys, m, records);
}

// --- all chunks ---

// Both are brought to the greater of the two greatest scores, and added.
void merge_row(float* merged, const float* record, int64_t width) {
  float bound = merged[0] > record[0] ? merged[0] : record[0];
  F old = exp(set1(merged[0] - bound)), fresh = exp(set1(record[0] - bound));
  float sums[16];
  store(sums, fma(set1(merged[1]), old, set1(record[1]) * fresh));
  merged[0] = bound;
  merged[1] = sums[0];
  for (int64_t d = kRecordHead; d < kRecordHead + width; d += 16)
    store(merged + d, fma(load(merged + d), old, load(record + d) * fresh));
}

void finish_row(const float* merged, int64_t head_dim, float* out) {
  for (int64_t d = 0; d < head_dim; d += 16)
    store_first(out + d, load(merged + kRecordHead + d) / set1(merged[1]), head_dim - d);
}

}  // namespace

void attend_chunk(const AttentionShare& s, int64_t chunk, float* records, uint8_t* scratch) {
  Scratch memory(scratch, rows_per_head(s) * heads_of(s), s.heads.head_dim);
  scale_queries(s, memory.q);
  attend(s, chunk, memory, records);
}

void attend_all(const AttentionShare& s, float* out, int64_t out_stride, uint8_t* scratch) {
  int64_t head_dim = s.heads.head_dim, width = attention_width(head_dim), record = attention_record(head_dim);
  int64_t rows = rows_per_head(s), heads = heads_of(s), chunks = attention_chunks(s.position + s.tokens);
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
