#include "attention_op.h"

#include <algorithm>

namespace qwill {
namespace {

constexpr int64_t kWrittenTokensPerTask = 16;
// Up to so many rows (tokens × query heads of a key-value head), reading the cache is the work, and chunks share it.
constexpr int64_t kFewRows = 32;
constexpr int64_t kRowsPerTask = 120;  // beyond, each widened tile of keys serves this many
// Tasks that the chunks make, for threads to end together. Where there are fewer chunks the heads are shared out too,
// which reads memory in shorter runs.
constexpr int64_t kWantedTasks = 8;

}  // namespace

// Lengths come from memory that Python fills anew for each run; what they ask for is cut to what the table can hold.
void AttentionOp::read_requests() {
  const AttentionArguments& a = arguments_;
  requests_.clear();
  for (int64_t i = 0; i < a.requests; i++) {
    int64_t first = a.query_start[i], tokens = a.query_start[i + 1] - first, context = a.context_lens[i];
    if (a.keys.data) context = std::min(context, a.table_width * a.block_size);
    int64_t chunks = tokens * a.heads.per_kv <= kFewRows ? attention_chunks(context) : 0;
    requests_.push_back({first, tokens, context, chunks, 0});
  }
}

void AttentionOp::plan() {
  read_requests();
  tasks_.clear();
  most_rows_ = records_ = 0;
  int64_t chunks = 0;
  for (const Request& request : requests_) chunks += request.chunks;
  int64_t heads_per_task = 0;
  if (chunks) heads_per_task = div_up(arguments_.heads.kv_heads, div_up(kWantedTasks, chunks));
  for (int64_t i = 0; i < arguments_.requests; i++) {
    if (requests_[i].chunks) cut_by_chunks(i, heads_per_task);
    else cut_by_tokens(i);
  }
}

void AttentionOp::cut_by_chunks(int64_t request, int64_t heads_per_task) {
  Request& r = requests_[request];
  int64_t heads = arguments_.heads.kv_heads;
  for (int64_t chunk = 0; chunk < r.chunks; chunk++)
    for (int64_t head = 0; head < heads; head += heads_per_task)
      tasks_.push_back({request, 0, r.tokens, chunk, head, std::min(head + heads_per_task, heads)});
  r.records = records_;
  records_ += r.chunks * chunk_stride(r);
  most_rows_ = std::max(most_rows_, r.tokens * arguments_.heads.per_kv * heads_per_task);
}

// The last tokens see most: they come first, so that the small tasks fill the end.
void AttentionOp::cut_by_tokens(int64_t request) {
  const Request& r = requests_[request];
  int64_t step = std::max<int64_t>(1, kRowsPerTask / arguments_.heads.per_kv);
  for (int64_t tile = div_up(r.tokens, step) - 1; tile >= 0; tile--)
    for (int64_t head = 0; head < arguments_.heads.kv_heads; head++)
      tasks_.push_back({request, tile * step, std::min(step, r.tokens - tile * step), 0, head, head + 1});
  most_rows_ = std::max(most_rows_, step * arguments_.heads.per_kv);
}

// Floats from one chunk's records to the next one's.
int64_t AttentionOp::chunk_stride(const Request& request) const {
  const AttentionHeads& heads = arguments_.heads;
  return request.tokens * heads.kv_heads * heads.per_kv * attention_record(heads.head_dim);
}

int64_t AttentionOp::shared_bytes() {
  plan();
  return records_ * static_cast<int64_t>(sizeof(float));
}

int64_t AttentionOp::own_bytes() { return attention_scratch_bytes(most_rows_, arguments_.heads.head_dim); }

int64_t AttentionOp::tasks(int phase) {
  if (phase == 0) return arguments_.keys.data ? div_up(arguments_.tokens, kWrittenTokensPerTask) : 0;
  if (phase == 1) return static_cast<int64_t>(tasks_.size());
  return records_ ? arguments_.requests * arguments_.heads.kv_heads : 0;
}

void AttentionOp::run(int phase, int64_t task, const Workspace& workspace) const {
  if (phase == 0) write(task);
  else if (phase == 1) attend(tasks_[task], workspace);
  else merge(task, reinterpret_cast<float*>(workspace.shared));
}

void AttentionOp::write(int64_t task) const {
  const AttentionArguments& a = arguments_;
  Range tokens(task, kWrittenTokensPerTask, a.tokens);
  kernels_.write_cache(a.k, a.k_stride, a.slot_mapping, tokens.begin, tokens.end, a.heads, a.keys);
  kernels_.write_cache(a.v, a.v_stride, a.slot_mapping, tokens.begin, tokens.end, a.heads, a.values);
}

AttentionShare AttentionOp::share(const Task& task) const {
  const AttentionArguments& a = arguments_;
  const Request& r = requests_[task.request];
  CacheRows keys = a.keys, values = a.values;
  const int32_t* blocks = a.block_tables + task.request * a.table_stride;
  if (!keys.data) {
    keys = {const_cast<float*>(a.k + r.first_token * a.k_stride), nullptr, a.k_stride, CacheType::float32};
    values = {const_cast<float*>(a.v + r.first_token * a.v_stride), nullptr, a.v_stride, CacheType::float32};
    blocks = nullptr;
  }
  const float* q = a.q + (r.first_token + task.first_token) * a.q_stride;
  int64_t position = r.context - r.tokens + task.first_token;
  return {q, a.q_stride, keys, values, blocks, a.block_size, a.heads, position, task.tokens, task.head_begin,
          task.head_end};
}

void AttentionOp::attend(const Task& task, const Workspace& workspace) const {
  const AttentionHeads& heads = arguments_.heads;
  const Request& r = requests_[task.request];
  if (!r.chunks) {
    int64_t stride = heads.kv_heads * heads.per_kv * heads.head_dim;
    float* out = arguments_.out + (r.first_token + task.first_token) * stride;
    return kernels_.attend_all(share(task), out, stride, workspace.own);
  }
  int64_t rows_before = task.head_begin * r.tokens * heads.per_kv;
  float* records = reinterpret_cast<float*>(workspace.shared) + r.records + task.chunk * chunk_stride(r) +
                   rows_before * attention_record(heads.head_dim);
  kernels_.attend_chunk(share(task), task.chunk, records, workspace.own);
}

void AttentionOp::merge(int64_t task, float* records) const {
  const AttentionHeads& heads = arguments_.heads;
  const Request& r = requests_[task / heads.kv_heads];
  if (!r.chunks) return;
  int64_t head = task % heads.kv_heads, record = attention_record(heads.head_dim);
  for (int64_t token = 0; token < r.tokens; token++)
    for (int64_t g = 0; g < heads.per_kv; g++) {
      int64_t row = (head * r.tokens + token) * heads.per_kv + g;
      int64_t chunks = attention_chunks(r.context - r.tokens + token + 1);
      int64_t query = (r.first_token + token) * heads.kv_heads * heads.per_kv + head * heads.per_kv + g;
      kernels_.merge_chunks(records + r.records + row * record, chunk_stride(r), chunks, heads.head_dim,
                            arguments_.out + query * heads.head_dim);
    }
}

}  // namespace qwill
