#include "lib/engine/yielding_runner.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

namespace attnserve {
namespace {

// How long after a hand-over others are expected to come again.
constexpr std::chrono::milliseconds kSharedTime{50};

}  // namespace

YieldingRunner::YieldingRunner(ParallelRunner* workers, Options options)
    : workers_(*workers), options_(std::move(options)) {}

bool YieldingRunner::MustYield() const {
  return options_.wanted() && std::chrono::steady_clock::now() >= quantum_end_;
}

void YieldingRunner::Run(int64_t task_count,
                         absl::FunctionRef<void(int64_t task, int worker)> body) {
  std::atomic<int64_t> next{0};
  while (true) {
    const int64_t left = task_count - next.load(std::memory_order_relaxed);
    workers_.Run(std::min<int64_t>(left, worker_count()), [&](int64_t, int worker) {
      do {
        const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
        if (task >= task_count) return;
        body(task, worker);
        if (std::chrono::steady_clock::now() < shared_until_) std::this_thread::yield();
      } while (!MustYield());
    });
    if (next.load(std::memory_order_relaxed) >= task_count) return;
    const auto start = std::chrono::steady_clock::now();
    options_.yield();
    const auto end = std::chrono::steady_clock::now();
    yielded_ += end - start;
    quantum_end_ = end + options_.quantum;
    shared_until_ = end + kSharedTime;
  }
}

}  // namespace attnserve
