// AttentionOp: writes the step's keys and values to the cache, then attends, for all requests of a packed step.
#pragma once

#include <vector>

#include "kernels.h"
#include "op.h"

namespace qwill {

// T tokens of B requests. What the pointers below point at may change from run to run; T, B and the sizes may not.
struct AttentionArguments {
  const float *q, *k, *v;  // rows of tokens, each one's heads end to end
  int64_t q_stride, k_stride, v_stride;
  float* out;  // (T, query heads, head_dim)
  int64_t tokens, requests;
  AttentionHeads heads;
  const int32_t* query_start;   // (B + 1)
  const int32_t* context_lens;  // (B)
  const int32_t* block_tables;  // (B, table_stride), of which table_width entries may be read
  int64_t table_stride, table_width;
  const int64_t* slot_mapping;  // (T)
  CacheRows keys, values;       // data null: no cache, a request's context is its own tokens
  int64_t block_size;
};

// Phase 0 writes the cache. In phase 1 a request with few new tokens is cut by chunks of its context, one with many by
// its tokens. Phase 2 merges the chunks of the former.
class AttentionOp final : public Op {
 public:
  AttentionOp(const Kernels& kernels, const AttentionArguments& arguments) : kernels_(kernels), arguments_(arguments) {}
  int phases() const override { return 3; }
  int64_t shared_bytes() override;  // asked first in each run: reads the step's metadata and plans the tasks
  int64_t own_bytes() override;
  int64_t tasks(int phase) override;
  void run(int phase, int64_t task, const Workspace& workspace) const override;

 private:
  struct Request {
    int64_t first_token, tokens, context;
    int64_t chunks;   // tasks share the context's chunks, or 0: they share the tokens
    int64_t records;  // where the chunks' records begin in shared memory, in floats
  };
  struct Task {
    int64_t request, first_token, tokens;
    int64_t chunk;
    int64_t head_begin, head_end;
  };
  void plan();
  void read_requests();
  void cut_by_chunks(int64_t request, int64_t heads_per_task);
  void cut_by_tokens(int64_t request);
  AttentionShare share(const Task& task) const;
  void write(int64_t task) const;
  void attend(const Task& task, const Workspace& workspace) const;
  void merge(int64_t task, float* records) const;
  int64_t chunk_stride(const Request& request) const;

  const Kernels& kernels_;
  AttentionArguments arguments_;
  std::vector<Request> requests_;
  std::vector<Task> tasks_;
  int64_t most_rows_ = 0, records_ = 0;
};

}  // namespace qwill
