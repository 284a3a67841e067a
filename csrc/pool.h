// Pool: runs ops on a fixed number of threads, the caller among them.
//
// Workers take tasks, they are not given shares: a thread that lost its core holds up nobody who still has one. While
// there is work they spin; soon after, they sleep. One pool serves one caller at a time; a second caller computes
// alone, on its own thread. After a fork the child starts workers of its own.
#pragma once

#include <atomic>
#include <span>

#include "op.h"

namespace qwill {

class Pool {
 public:
  explicit Pool(int threads);  // 1 … 1024, the caller included
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void run(std::span<Op* const> ops);
  int threads() const { return threads_; }

 private:
  struct State;
  State& state();
  int threads_;
  std::atomic<State*> state_{nullptr};
};

}  // namespace qwill
