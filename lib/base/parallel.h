// How code in lib/ asks for parallelism without owning threads.
#ifndef ATTNSERVE_LIB_BASE_PARALLEL_H_
#define ATTNSERVE_LIB_BASE_PARALLEL_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace attnserve {

// Runs independent tasks. The results must not depend on which worker runs a task.
class ParallelRunner {
 public:
  virtual ~ParallelRunner() = default;

  // Threads that run tasks, >= 1.
  virtual int worker_count() const = 0;

  // Calls body(task, worker) once for each task in [0, task_count), worker in [0, worker_count()),
  // and returns when all have ended. Tasks with the same worker number never overlap. `body` must
  // not throw and must not call Run.
  virtual void Run(int64_t task_count, absl::FunctionRef<void(int64_t task, int worker)> body) = 0;
};

// Runs everything on the calling thread.
class InlineRunner final : public ParallelRunner {
 public:
  int worker_count() const override { return 1; }
  void Run(int64_t task_count, absl::FunctionRef<void(int64_t task, int worker)> body) override {
    for (int64_t task = 0; task < task_count; ++task) body(task, 0);
  }
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_BASE_PARALLEL_H_
