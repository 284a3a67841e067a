// Op: one operation, checked and ready to run, cut into tasks that any thread may take.
//
// Knows pointers and sizes, not who owns them; knows nothing of threads and of Python. The pool runs ops one after
// another: phase by phase, and each phase's tasks in any order, on any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qwill {

// Memory that an op may use while it runs. `shared` is the same for all tasks of the op and keeps its contents from
// phase to phase; `own` belongs to the thread and keeps nothing. Both are aligned to 64 bytes.
struct Workspace {
  uint8_t* shared;
  uint8_t* own;
};

class Op {
 public:
  virtual ~Op() = default;
  virtual int phases() const { return 1; }
  // Read once before the op's program runs, by one thread; an op may read its metadata (context lengths …) here.
  virtual int64_t tasks(int phase) = 0;
  virtual int64_t shared_bytes() { return 0; }
  virtual int64_t own_bytes() { return 0; }
  virtual void run(int phase, int64_t task, const Workspace& workspace) const = 0;
};

// Task `task` of `tasks` over `count` rows: rows [begin, end).
struct Range {
  int64_t begin, end;
  Range(int64_t task, int64_t rows_per_task, int64_t count)
      : begin(task * rows_per_task), end(begin + rows_per_task < count ? begin + rows_per_task : count) {}
};

inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return div_up(a, b) * b; }

}  // namespace qwill
