// The only source of parallelism.
#ifndef ATTNSERVE_LIB_ENGINE_WORKER_POOL_H_
#define ATTNSERVE_LIB_ENGINE_WORKER_POOL_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "lib/base/mutex.h"
#include "lib/base/parallel.h"

namespace attnserve {

// Threads that sleep until there is work: nothing spins, waiting costs no CPU. The thread that
// calls Run works too, as worker 0, so a pool of N has N - 1 threads of its own. Run is called by
// one thread at a time; one task or one worker run on the calling thread and wake nobody. Run does
// not wait for threads that have not woken up by the time the last task is taken.
class WorkerPool final : public ParallelRunner {
 public:
  // `worker_count` >= 1. Has fewer threads if the system gives no more.
  explicit WorkerPool(int worker_count);
  ~WorkerPool() override;  // waits for the threads

  int worker_count() const override { return static_cast<int>(threads_.size()) + 1; }
  void Run(int64_t task_count, absl::FunctionRef<void(int64_t task, int worker)> body) override;

 private:
  // What Run hands to the threads; lives on Run's stack.
  struct Job {
    absl::FunctionRef<void(int64_t, int)> body;
    int64_t task_count;
    std::atomic<int64_t> next_task{0};
  };
  void WorkerLoop(int worker);
  static void Work(Job& job, int worker);

  Mutex mutex_;
  CondVar work_;                                // a job is open, or the end has come
  CondVar done_;                                // the last thread has left the job
  Job* job_ ABSL_GUARDED_BY(mutex_) = nullptr;  // open to be joined; null: none
  uint64_t job_number_ ABSL_GUARDED_BY(mutex_) = 0;
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that have joined and not left
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Threads the process may use: the least of online CPUs, affinity mask and the control groups' CPU
// quotas (rounded up), at least 1. `root` stands before /proc and /sys, for tests.
int DefaultThreadCount(const std::string& root = "");

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_WORKER_POOL_H_
