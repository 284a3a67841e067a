// The pool: every task once and in phases, callers that meet or nest, forked children, programs that are run again.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <thread>

#include "check.h"
#include "pool.h"
#include "program.h"

namespace qwill::tests {
namespace {

// Counts its tasks, and sees that no phase begins before the one before it has ended.
class CountingOp final : public Op {
 public:
  CountingOp(int phases, int64_t tasks) : tasks_(tasks), runs_(static_cast<size_t>(phases * tasks)), done_(phases) {}
  int phases() const override { return static_cast<int>(done_.size()); }
  int64_t tasks(int) override { return tasks_; }
  int64_t shared_bytes() override { return tasks_ * 8; }
  int64_t own_bytes() override { return 100; }
  void run(int phase, int64_t task, const Workspace& workspace) const override {
    if (phase > 0) CHECK(done_[phase - 1].load() % tasks_ == 0 && done_[phase - 1].load() > done_[phase].load());
    CHECK(reinterpret_cast<uintptr_t>(workspace.shared) % 64 == 0);
    CHECK(reinterpret_cast<uintptr_t>(workspace.own) % 64 == 0);
    auto* shared = reinterpret_cast<int64_t*>(workspace.shared);
    if (phase > 0) CHECK(shared[task] == 1000 * (phase - 1) + task);
    shared[task] = 1000 * phase + task;
    for (int i = 0; i < 100; i++) workspace.own[i] = static_cast<uint8_t>(task);
    for (int i = 0; i < 100; i++) CHECK(workspace.own[i] == static_cast<uint8_t>(task));
    runs_[static_cast<size_t>(phase * tasks_ + task)]++;
    done_[static_cast<size_t>(phase)]++;
  }
  bool every_task_ran(int times) const {
    for (const auto& count : runs_)
      if (count.load() != times) return false;
    return true;
  }

 private:
  int64_t tasks_;
  mutable std::vector<std::atomic<int>> runs_;
  mutable std::vector<std::atomic<int64_t>> done_;
};

void run(Pool& pool, CountingOp& op) {
  Op* one = &op;
  pool.run({&one, 1});
}

void every_task_runs_once() {
  for (int threads = 1; threads <= 4; threads++) {
    Pool pool(threads);
    for (int64_t tasks : {0, 1, 2, 7, 200})
      for (int phases = 1; phases <= 3; phases++) {
        CountingOp op(phases, tasks);
        for (int times = 1; times <= 30; times++) {
          run(pool, op);
          CHECK(op.every_task_ran(times));
        }
      }
  }
}

void a_program_runs_its_ops_in_order_again_and_again() {
  Pool pool(3);
  Program program;
  std::deque<CountingOp*> ops;
  for (int i = 0; i < 40; i++) {
    auto op = std::make_unique<CountingOp>(1 + i % 3, i % 5);
    ops.push_back(op.get());
    program.add(std::move(op));
  }
  CHECK(program.size() == 40);
  for (int times = 1; times <= 200; times++) {
    program.run(pool);
    for (CountingOp* op : ops) CHECK(op->every_task_ran(times));
    if (times % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the workers fall asleep
  }
}

void callers_that_meet_do_not_disturb_each_other() {
  Pool pool(2);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; i++)
    callers.emplace_back([&pool] {
      CountingOp op(2, 20);
      for (int times = 1; times <= 200; times++) {
        run(pool, op);
        CHECK(op.every_task_ran(times));
      }
    });
  for (std::thread& caller : callers) caller.join();
}

// An op whose tasks use the pool that runs them.
class NestingOp final : public Op {
 public:
  explicit NestingOp(Pool& pool) : pool_(pool) {}
  int64_t tasks(int) override { return 6; }
  void run(int, int64_t, const Workspace&) const override {
    CountingOp inner(2, 5);
    tests::run(pool_, inner);
    CHECK(inner.every_task_ran(1));
  }

 private:
  Pool& pool_;
};

void a_task_may_use_the_pool_that_runs_it() {
  Pool pool(3);
  NestingOp op(pool);
  Op* one = &op;
  for (int i = 0; i < 50; i++) pool.run({&one, 1});
}

void a_forked_child_computes_and_so_does_its_parent_afterwards() {
  Pool pool(3);
  CountingOp op(2, 30);
  run(pool, op);
  pid_t child = fork();
  if (child == 0) {
    run(pool, op);
    _exit(op.every_task_ran(2) ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  run(pool, op);
  CHECK(op.every_task_ran(2));
}

void pools_come_and_go() {
  for (int i = 0; i < 50; i++) {
    Pool pool(1 + i % 4);
    CountingOp op(1, 3);
    if (i % 3) run(pool, op);
  }
}

}  // namespace

void pool_tests() {
  every_task_runs_once();
  a_program_runs_its_ops_in_order_again_and_again();
  callers_that_meet_do_not_disturb_each_other();
  a_task_may_use_the_pool_that_runs_it();
  a_forked_child_computes_and_so_does_its_parent_afterwards();
  pools_come_and_go();
}

}  // namespace qwill::tests
