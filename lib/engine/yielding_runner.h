// Lets short work pass long work.
#ifndef ATTNSERVE_LIB_ENGINE_YIELDING_RUNNER_H_
#define ATTNSERVE_LIB_ENGINE_YIELDING_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"
#include "lib/base/parallel.h"

namespace attnserve {

// Runs tasks on another runner's workers. Once `quantum` has passed since the workers were last
// handed over, and somebody waits for them, it hands them over between two tasks and goes on
// afterwards: who waits, waits for a quantum and the longest task. At least one task runs between
// two hand-overs. Run is called by one thread.
//
// For a while after a hand-over a worker also offers its core, after each task, to any other thread
// that is ready: those that write replies and read the next requests would else wait until the
// system takes the core from a worker, some milliseconds each. (Not always: beside a busy process
// whoever offers gets less than its share.)
class YieldingRunner final : public ParallelRunner {
 public:
  struct Options {
    std::chrono::nanoseconds quantum{0};
    // Whether somebody waits. Called from all workers.
    std::function<bool()> wanted;
    // Uses the workers; returns when it is done. Called from the thread that calls Run.
    std::function<void()> yield;
  };
  // `workers` outlives this.
  YieldingRunner(ParallelRunner* workers, Options options);

  int worker_count() const override { return workers_.worker_count(); }
  void Run(int64_t task_count, absl::FunctionRef<void(int64_t task, int worker)> body) override;

  // Time that was spent in `yield` since the beginning.
  std::chrono::nanoseconds yielded() const { return yielded_; }

 private:
  bool MustYield() const;

  ParallelRunner& workers_;
  const Options options_;
  std::chrono::steady_clock::time_point quantum_end_{};
  std::chrono::steady_clock::time_point shared_until_{};
  std::chrono::nanoseconds yielded_{0};
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_YIELDING_RUNNER_H_
