// The only source of parallelism.
#ifndef ATTNSERVE_LIB_ENGINE_WORKER_POOL_H_
#define ATTNSERVE_LIB_ENGINE_WORKER_POOL_H_

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "lib/base/mutex.h"
#include "lib/base/parallel.h"

namespace attnserve {

// Threads that sleep until there is work. The thread that calls Run works too, as worker 0, so a
// pool of N has N - 1 threads of its own. Run is called by one thread at a time.
class WorkerPool final : public ParallelRunner {
 public:
  // `worker_count` >= 1.
  explicit WorkerPool(int worker_count);
  ~WorkerPool() override;  // waits for the threads

  int worker_count() const override { return static_cast<int>(threads_.size()) + 1; }
  void Run(int64_t task_count, absl::FunctionRef<void(int64_t task, int worker)> body) override;

 private:
  void WorkerLoop(int worker);

  std::vector<std::thread> threads_;
  Mutex mutex_;
  CondVar work_;
  CondVar done_;
  // Details of the hand-off belong to worker_pool.cc's author.
};

// Threads the process may use: the least of online CPUs, affinity mask and the control group's CPU
// quota (rounded up), at least 1.
int DefaultThreadCount();

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_WORKER_POOL_H_
