#include "lib/engine/worker_pool.h"

#include <sched.h>

#include <algorithm>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/control_group.h"

namespace attnserve {
namespace {

// Rounds quota / period up; `least` where there is no quota.
int64_t QuotaThreads(const std::string& quota, const std::string& period, int64_t least) {
  int64_t quota_us = 0, period_us = 0;
  if (!absl::SimpleAtoi(quota, &quota_us) || !absl::SimpleAtoi(period, &period_us)) return least;
  if (quota_us <= 0 || period_us <= 0) return least;
  return std::min(least, (quota_us + period_us - 1) / period_us);
}

}  // namespace

WorkerPool::WorkerPool(int worker_count) {
  for (int worker = 1; worker < worker_count; ++worker) {
    try {
      threads_.emplace_back([this, worker] { WorkerLoop(worker); });
    } catch (const std::system_error&) {
      break;
    }
  }
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Run(int64_t task_count, absl::FunctionRef<void(int64_t task, int worker)> body) {
  if (threads_.empty() || task_count <= 1) {
    for (int64_t task = 0; task < task_count; ++task) body(task, 0);
    return;
  }
  Job job{body, task_count};
  const int64_t helpers = std::min(static_cast<int64_t>(threads_.size()), task_count - 1);
  {
    MutexLock lock(mutex_);
    job_ = &job;
    ++job_number_;
  }
  for (int64_t i = 0; i < helpers; ++i) work_.NotifyOne();
  Work(job, 0);
  MutexLock lock(mutex_);
  job_ = nullptr;
  while (busy_ > 0) done_.Wait(mutex_);
}

void WorkerPool::Work(Job& job, int worker) {
  while (true) {
    const int64_t task = job.next_task.fetch_add(1, std::memory_order_relaxed);
    if (task >= job.task_count) return;
    job.body(task, worker);
  }
}

void WorkerPool::WorkerLoop(int worker) {
  uint64_t last_job = 0;
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && (job_ == nullptr || job_number_ == last_job)) work_.Wait(mutex_);
    if (stopping_) return;
    last_job = job_number_;
    Job* const job = job_;
    ++busy_;
    mutex_.Unlock();
    Work(*job, worker);
    mutex_.Lock();
    if (--busy_ == 0) done_.NotifyOne();
  }
}

int DefaultThreadCount(const std::string& root) {
  int64_t threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
    threads = std::min<int64_t>(threads, CPU_COUNT(&mask));
  }
  for (const std::string& folder : ControlGroupFolders("cpu", root)) {
    const std::vector<std::string> version2 = absl::StrSplit(FirstLine(folder + "/cpu.max"), ' ');
    if (version2.size() == 2) threads = QuotaThreads(version2[0], version2[1], threads);
    threads = QuotaThreads(FirstLine(folder + "/cpu.cfs_quota_us"),
                           FirstLine(folder + "/cpu.cfs_period_us"), threads);
  }
  return static_cast<int>(std::max<int64_t>(1, threads));
}

}  // namespace attnserve
