#include "lib/engine/yielding_runner.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "lib/engine/worker_pool.h"

namespace attnserve {
namespace {

TEST(YieldingRunner, RunsEveryTaskOnceHoweverOftenItYields) {
  for (const int workers : {1, 2, 4}) {
    WorkerPool pool(workers);
    std::atomic<int> running{0};
    int yields = 0;
    YieldingRunner runner(&pool, {std::chrono::nanoseconds(0), [] { return true; },
                                  [&] {
                                    EXPECT_EQ(running, 0) << "nobody works meanwhile";
                                    pool.Run(3, [](int64_t, int) {});  // and the workers are free
                                    ++yields;
                                  }});
    EXPECT_EQ(runner.worker_count(), workers);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 64, 300}) {
      yields = 0;
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      runner.Run(tasks, [&](int64_t task, int worker) {
        ++running;
        EXPECT_LT(worker, workers);
        ++runs[static_cast<size_t>(task)];
        --running;
      });
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
      EXPECT_LT(yields, std::max<int64_t>(1, tasks)) << "a task runs between two of them";
      if (tasks > workers) {
        EXPECT_GE(yields, (tasks - 1) / workers - 1);
      }
    }
  }
}

TEST(YieldingRunner, KeepsTheWorkersForAQuantum) {
  WorkerPool pool(2);
  std::atomic<bool> wanted{false};
  int yields = 0;
  const auto yield = [&] {
    wanted = false;
    ++yields;
  };
  YieldingRunner runner(&pool, {std::chrono::hours(1), [&] { return wanted.load(); }, yield});
  runner.Run(100, [](int64_t, int) {});
  EXPECT_EQ(yields, 0) << "nobody waits";
  runner.Run(100, [&](int64_t task, int) { wanted = task >= 5; });
  EXPECT_EQ(yields, 1) << "the first who waits gets the workers, the next in an hour";
}

TEST(YieldingRunner, CountsTheTimeGivenAway) {
  WorkerPool pool(1);
  YieldingRunner runner(&pool, {std::chrono::nanoseconds(0), [] { return true; },
                                [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }});
  runner.Run(4, [](int64_t, int) {});
  EXPECT_GE(runner.yielded(), std::chrono::milliseconds(6));
}

}  // namespace
}  // namespace attnserve
