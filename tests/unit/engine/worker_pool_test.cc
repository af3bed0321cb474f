#include "lib/engine/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace attnserve {
namespace {

TEST(WorkerPool, RunsEveryTaskOnce) {
  for (int workers = 1; workers <= 5; ++workers) {
    WorkerPool pool(workers);
    EXPECT_EQ(pool.worker_count(), workers);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      pool.Run(tasks, [&](int64_t task, int worker) {
        ++runs[static_cast<size_t>(task)];
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, workers);
      });
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

// Tasks and the caller write plain memory: ThreadSanitizer sees a missing hand-over.
TEST(WorkerPool, ResultsAreVisibleToTheCallerAndToTheNextRun) {
  WorkerPool pool(4);
  std::vector<int64_t> values(100, 0);
  for (int64_t round = 0; round < 2000; ++round) {
    pool.Run(100, [&](int64_t task, int) { values[static_cast<size_t>(task)] += task; });
    values[static_cast<size_t>(round % 100)] += 1;
  }
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], 2000 * i + 20);
}

TEST(WorkerPool, TasksOfOneWorkerNeverOverlap) {
  WorkerPool pool(4);
  std::vector<int> plain(4, 0);  // a race here is an overlap
  std::vector<std::atomic<int>> inside(4);
  for (int round = 0; round < 200; ++round) {
    pool.Run(50, [&](int64_t, int worker) {
      const size_t w = static_cast<size_t>(worker);
      EXPECT_EQ(inside[w].fetch_add(1), 0);
      ++plain[w];
      inside[w].fetch_sub(1);
    });
  }
  EXPECT_EQ(plain[0] + plain[1] + plain[2] + plain[3], 200 * 50);
}

TEST(WorkerPool, TasksRunAtTheSameTime) {
  WorkerPool pool(3);
  std::atomic<int> arrived{0};
  pool.Run(3, [&](int64_t, int) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();  // hangs unless three threads work
  });
  EXPECT_EQ(arrived, 3);
}

TEST(WorkerPool, OneTaskRunsOnTheCallingThread) {
  WorkerPool pool(4);
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < 100; ++round) {
    pool.Run(1, [&](int64_t, int worker) {
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(std::this_thread::get_id(), caller);
    });
  }
}

TEST(WorkerPool, OneWorkerRunsTasksInOrderOnTheCallingThread) {
  WorkerPool pool(1);
  std::vector<int64_t> order;
  const std::thread::id caller = std::this_thread::get_id();
  pool.Run(5, [&](int64_t task, int) {
    order.push_back(task);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST(WorkerPool, DoesNotWaitForSleepersThatFoundNoWork) {
  WorkerPool pool(8);
  for (int round = 0; round < 2000; ++round) {
    int64_t sum = 0;
    pool.Run(2, [&](int64_t task, int worker) {
      if (worker == 0) sum += task;
    });
    EXPECT_LE(sum, 1);
  }
}

TEST(WorkerPool, ReturnsOnlyAfterTheLastTaskHasEnded) {
  WorkerPool pool(2);
  std::atomic<int> ended{0};
  pool.Run(4, [&](int64_t task, int) {
    if (task > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ++ended;
  });
  EXPECT_EQ(ended, 4);
}

TEST(WorkerPool, PoolsThatNeverRanEnd) {
  for (int i = 0; i < 50; ++i) WorkerPool pool(1 + i % 5);
}

TEST(WorkerPool, PoolsAreIndependent) {
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum{0};
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      WorkerPool pool(3);
      for (int round = 0; round < 200; ++round) {
        pool.Run(10, [&](int64_t task, int) { sum += task; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 3 * 200 * 45);
}

class DefaultThreadCountTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "attnserve_thread_count_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    unlimited_ = DefaultThreadCount(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void MountVersion1() {
    Write("/proc/self/cgroup", "3:cpu,cpuacct:/a/b\n");
    Write("/proc/self/mountinfo",
          "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  }
  void MountVersion2() {
    Write("/proc/self/cgroup", "0::/a/b\n");
    Write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  }
  int Count() const { return DefaultThreadCount(root_); }

  std::string root_;
  int unlimited_ = 0;  // what CPUs and affinity allow
};

TEST_F(DefaultThreadCountTest, WithoutQuotaIsWhatTheMachineAllows) {
  EXPECT_GE(unlimited_, 1);
  EXPECT_LE(DefaultThreadCount(), unlimited_);
  EXPECT_GE(DefaultThreadCount(), 1);
  MountVersion2();
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(Count(), unlimited_);
}

TEST_F(DefaultThreadCountTest, Version2QuotaIsRoundedUp) {
  MountVersion2();
  Write("/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(Count(), 1);
  Write("/sys/fs/cgroup/a/b/cpu.max", "100000 100000\n");
  EXPECT_EQ(Count(), 1);
  Write("/sys/fs/cgroup/a/b/cpu.max", "100001 100000\n");
  EXPECT_EQ(Count(), std::min(2, unlimited_));
  Write("/sys/fs/cgroup/a/b/cpu.max", "100000000 100000\n");
  EXPECT_EQ(Count(), unlimited_);
}

TEST_F(DefaultThreadCountTest, AncestorsCount) {
  MountVersion2();
  Write("/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  Write("/sys/fs/cgroup/a/cpu.max", "100000 100000\n");
  EXPECT_EQ(Count(), 1);
}

TEST_F(DefaultThreadCountTest, Version1QuotaIsRoundedUp) {
  MountVersion1();
  Write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Count(), unlimited_);
  Write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(Count(), std::min(2, unlimited_));
  Write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(Count(), 1);
}

TEST_F(DefaultThreadCountTest, BrokenFilesAreIgnored) {
  MountVersion2();
  for (const char* text : {"", "\n", "x y\n", "100000\n", "100000 0\n", "0 100000\n", "-1 -1\n"}) {
    Write("/sys/fs/cgroup/a/b/cpu.max", text);
    EXPECT_EQ(Count(), unlimited_) << text;
  }
}

}  // namespace
}  // namespace attnserve
