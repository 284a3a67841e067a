#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qwill {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kSpinsBeforeSleep = 4000;   // about 50 µs: longer than Python needs between two ops of a step
constexpr int kSpinsBeforeYield = 400;   // while others finish their tasks of a phase
constexpr int kYieldsBeforeSleep = 50;

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Aligned memory that only grows; what it held is lost when it does.
class Buffer {
 public:
  ~Buffer() { std::free(data_); }
  uint8_t* at_least(int64_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = round_up(bytes, 4096);
      data_ = static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(size_)));
      if (!data_) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return data_;
  }

 private:
  uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

// The tasks of one phase that were taken, and those that are done. The upper half of each number is the run that it
// belongs to: a worker that was asleep since an earlier run sees another number there, and takes nothing.
struct alignas(64) Progress {
  std::atomic<uint64_t> taken{0};
  std::atomic<uint64_t> done{0};
  std::atomic<uint64_t> tasks{0};
  Op* op = nullptr;
  int phase = 0;
  std::atomic<Progress*> next{nullptr};
};

struct Plan {
  size_t steps = 0;
  bool worth_waking = false;  // somewhere there is more than one task
};

std::atomic<unsigned> forks{0};

void run_alone(std::span<Op* const> ops) {
  Buffer shared, own;
  for (Op* op : ops) {
    Workspace workspace{shared.at_least(op->shared_bytes()), own.at_least(op->own_bytes())};
    for (int phase = 0; phase < op->phases(); phase++)
      for (int64_t task = 0, tasks = op->tasks(phase); task < tasks; task++) op->run(phase, task, workspace);
  }
}

}  // namespace

struct Pool::State {
  const unsigned born;             // the number of forks before it
  std::atomic<bool> busy{false};  // a caller's ops run
  Progress first;       // a list that grows and never shrinks: late workers may still look
  std::deque<Progress> rest;
  std::atomic<uint64_t> run{0};
  uint8_t* shared = nullptr;
  std::vector<uint8_t*> own;
  Buffer shared_buffer;
  std::deque<Buffer> own_buffers;

  std::mutex sleep;
  std::condition_variable wake, step_done;
  std::atomic<int> sleepers{0}, waiters{0};  // threads that sleep until there is work, until a step is done
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;

  State(int threads, unsigned forks);
  ~State();
  Progress* after(Progress& step);
  Plan prepare(std::span<Op* const> ops, uint64_t number);
  bool finish(Progress& step, uint64_t number, size_t thread);
  bool wait(Progress& step, uint64_t tag);
  void serve(size_t thread);
  uint64_t next_run(uint64_t seen);
};

Pool::State::State(int threads, unsigned forks)
    : born(forks), own(static_cast<size_t>(threads)), own_buffers(static_cast<size_t>(threads)) {
  try {
    for (size_t i = 1; i < own.size(); i++) workers.emplace_back([this, i] { serve(i); });
  } catch (const std::system_error&) {
    // The process may have no more threads. Those that there are do the work.
  }
}

Pool::State::~State() {
  {
    std::lock_guard lock(sleep);
    stop.store(true);
  }
  wake.notify_all();
  for (std::thread& worker : workers) worker.join();
}

Progress* Pool::State::after(Progress& step) {
  if (!step.next.load()) step.next.store(&rest.emplace_back());
  return step.next.load();
}

// Lays out a run. `taken` is written first: from then on no late worker can take a task of the step.
Plan Pool::State::prepare(std::span<Op* const> ops, uint64_t number) {
  Plan plan;
  int64_t shared_bytes = 0, own_bytes = 0;
  Progress* step = &first;
  for (Op* op : ops) {
    shared_bytes = std::max(shared_bytes, op->shared_bytes());
    own_bytes = std::max(own_bytes, op->own_bytes());
    for (int phase = 0; phase < op->phases(); phase++, plan.steps++, step = after(*step)) {
      int64_t tasks = op->tasks(phase);
      plan.worth_waking |= tasks > 1;
      step->taken.store(number << 32);
      step->done.store(number << 32);
      step->tasks.store(static_cast<uint64_t>(tasks));
      step->op = op;
      step->phase = phase;
    }
  }
  shared = shared_buffer.at_least(shared_bytes);
  for (size_t i = 0; i < own.size(); i++) own[i] = own_buffers[i].at_least(own_bytes);
  return plan;
}

// Takes tasks of a step while there are any, then waits until all are done. False: this is another run's by now.
bool Pool::State::finish(Progress& step, uint64_t number, size_t thread) {
  uint64_t tag = number & 0xffffffff, taken = step.taken.load();
  for (;;) {
    if (taken >> 32 != tag) return false;
    uint64_t task = taken & 0xffffffff, tasks = step.tasks.load();
    if (task >= tasks) break;
    if (!step.taken.compare_exchange_weak(taken, taken + 1)) continue;
    step.op->run(step.phase, static_cast<int64_t>(task), {shared, own[thread]});
    bool last = (step.done.fetch_add(1) & 0xffffffff) + 1 == tasks;
    if (last && waiters.load() > 0) {
      std::lock_guard guard(sleep);
      step_done.notify_all();
    }
    taken = step.taken.load();
  }
  return wait(step, tag);
}

// Sleeping is for the case that whoever has the last task lost its core to another process: the system then gives it
// the core on which we would have waited.
bool Pool::State::wait(Progress& step, uint64_t tag) {
  auto over = [&] {
    uint64_t done = step.done.load();
    return done >> 32 != tag || (done & 0xffffffff) == step.tasks.load();
  };
  for (int spins = 0; !over(); spins++) {
    if (spins < kSpinsBeforeYield) pause_briefly();
    else if (spins < kSpinsBeforeYield + kYieldsBeforeSleep) std::this_thread::yield();
    else {
      std::unique_lock lock(sleep);
      waiters.fetch_add(1);
      step_done.wait(lock, over);
      waiters.fetch_sub(1);
    }
  }
  return step.done.load() >> 32 == tag;
}

void Pool::State::serve(size_t thread) {
  for (uint64_t seen = 0;;) {
    uint64_t number = next_run(seen);
    if (stop.load()) return;
    for (Progress* step = &first; step && finish(*step, number, thread);) step = step->next.load();
    seen = number;
  }
}

uint64_t Pool::State::next_run(uint64_t seen) {
  for (int spins = 0; spins < kSpinsBeforeSleep; spins++) {
    if (run.load() != seen || stop.load()) return run.load();
    pause_briefly();
  }
  std::unique_lock lock(sleep);
  sleepers.fetch_add(1);
  wake.wait(lock, [&] { return run.load() != seen || stop.load(); });
  sleepers.fetch_sub(1);
  return run.load();
}

Pool::Pool(int threads) : threads_(threads) {
  if (threads < 1 || threads > kMostThreads) throw std::invalid_argument("a pool has 1 … 1024 threads");
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); }); });
}

// The workers, started when first needed; anew in a forked child, which has none of its parent's threads. What the
// parent left there is never touched again: its locks may be held by threads that do not exist.
Pool::State& Pool::state() {
  State* known = state_.load();
  unsigned now = forks.load();
  if (known && known->born == now) return *known;
  auto fresh = std::make_unique<State>(threads_, now);
  if (state_.compare_exchange_strong(known, fresh.get())) return *fresh.release();
  return *known;  // another thread was first
}

Pool::~Pool() {
  State* known = state_.load();
  if (known && known->born == forks.load()) delete known;
}

void Pool::run(std::span<Op* const> ops) {
  State& state = this->state();
  if (state.busy.exchange(true)) return run_alone(ops);
  struct Release {
    std::atomic<bool>& busy;
    ~Release() { busy.store(false); }
  } release{state.busy};
  uint64_t number = state.run.load() + 1;
  Plan plan = state.prepare(ops, number);
  state.run.store(number);
  if (plan.worth_waking && state.sleepers.load() > 0) {
    std::lock_guard guard(state.sleep);
    state.wake.notify_all();
  }
  Progress* step = &state.first;
  for (size_t i = 0; i < plan.steps; i++, step = step->next.load()) state.finish(*step, number, 0);
}

}  // namespace qwill
