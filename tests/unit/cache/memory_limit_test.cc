#include "lib/cache/memory_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace attnserve {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

constexpr char kVersion1Mount[] =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup "
    "rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory\n";
constexpr char kVersion2Mount[] =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n";

// A tree of files that stands before /proc and /sys; 16 GiB of physical memory.
class FakeRoot : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "attnserve_memory_limit_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  MemoryLimit Read() const { return ReadMemoryLimit(root_); }

  std::string root_;
};

using MemoryLimitTest = FakeRoot;

TEST_F(MemoryLimitTest, WithoutControlGroupsIsPhysicalMemory) {
  EXPECT_EQ(Read().bytes, 16384 * kMiB);
  EXPECT_EQ(Read().source, "physical memory");
}

TEST_F(MemoryLimitTest, Version2TakesTheOwnGroup) {
  Write("/proc/self/cgroup", "0::/system.slice/attnserve.service\n");
  Write("/proc/self/mountinfo", kVersion2Mount);
  Write("/sys/fs/cgroup/system.slice/attnserve.service/memory.max", "1073741824\n");
  Write("/sys/fs/cgroup/system.slice/memory.max", "max\n");
  EXPECT_EQ(Read().bytes, 1024 * kMiB);
  EXPECT_EQ(Read().source,
            "cgroup " + root_ + "/sys/fs/cgroup/system.slice/attnserve.service/memory.max");
}

TEST_F(MemoryLimitTest, Version2TakesALowerAncestor) {
  Write("/proc/self/cgroup", "0::/a/b/c\n");
  Write("/proc/self/mountinfo", kVersion2Mount);
  Write("/sys/fs/cgroup/a/b/c/memory.max", "1073741824\n");
  Write("/sys/fs/cgroup/a/memory.max", "536870912\n");
  EXPECT_EQ(Read().bytes, 512 * kMiB);
  EXPECT_EQ(Read().source, "cgroup " + root_ + "/sys/fs/cgroup/a/memory.max");
}

TEST_F(MemoryLimitTest, Version2MaxIsUnlimited) {
  Write("/proc/self/cgroup", "0::/a\n");
  Write("/proc/self/mountinfo", kVersion2Mount);
  Write("/sys/fs/cgroup/a/memory.max", "max\n");
  EXPECT_EQ(Read().source, "physical memory");
}

TEST_F(MemoryLimitTest, ContainerWithItsOwnNamespaceReadsTheMount) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/proc/self/mountinfo", kVersion2Mount);
  Write("/sys/fs/cgroup/memory.max", "268435456\n");
  EXPECT_EQ(Read().bytes, 256 * kMiB);
}

TEST_F(MemoryLimitTest, ProcessOutsideOfItsNamespaceReadsTheMount) {
  Write("/proc/self/cgroup", "0::/../sibling\n");
  Write("/proc/self/mountinfo", kVersion2Mount);
  Write("/sys/fs/cgroup/memory.max", "268435456\n");
  EXPECT_EQ(Read().bytes, 256 * kMiB);
}

TEST_F(MemoryLimitTest, Version1TakesTheLeastOfAllGroups) {
  Write("/proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/pods/pod1/box\n1:name=systemd:/y\n");
  Write("/proc/self/mountinfo", kVersion1Mount);
  Write("/sys/fs/cgroup/memory/pods/pod1/box/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/pods/pod1/memory.limit_in_bytes", "2147483648\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Read().bytes, 2048 * kMiB);
}

TEST_F(MemoryLimitTest, Version1LargestNumberIsUnlimited) {
  Write("/proc/self/cgroup", "4:memory:/\n");
  Write("/proc/self/mountinfo", kVersion1Mount);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Read().bytes, 16384 * kMiB);
  EXPECT_EQ(Read().source, "physical memory");
}

TEST_F(MemoryLimitTest, Version1ContainerMountShowsItsOwnGroup) {
  Write("/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
  Write("/proc/self/mountinfo",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n");
  Write("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(Read().bytes, 1024 * kMiB);
}

TEST_F(MemoryLimitTest, MountOfAnotherGroupCountsByItself) {
  Write("/proc/self/cgroup", "4:memory:/docker/abcdef\n");
  Write("/proc/self/mountinfo",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n");
  EXPECT_EQ(Read().bytes, 4096 * kMiB);
}

TEST_F(MemoryLimitTest, BothVersionsMountedTakeTheLeast) {
  Write("/proc/self/cgroup", "4:memory:/a\n0::/b\n");
  Write("/proc/self/mountinfo",
        std::string(kVersion1Mount) +
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4294967296\n");
  Write("/sys/fs/cgroup/unified/b/memory.max", "3221225472\n");
  EXPECT_EQ(Read().bytes, 3072 * kMiB);
}

TEST_F(MemoryLimitTest, MountPointWithASpaceIsFound) {
  Write("/proc/self/cgroup", "0::/a\n");
  Write("/proc/self/mountinfo", "30 23 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n");
  Write("/my groups/a/memory.max", "1048576\n");
  EXPECT_EQ(Read().bytes, kMiB);
}

TEST_F(MemoryLimitTest, BrokenFilesAreSkipped) {
  Write("/proc/self/cgroup", "\n4\n4:memory\n0:memory:\n0::\n0::no_slash\n");
  Write("/proc/self/mountinfo",
        "\n30\n30 23 0:26 / - cgroup2\n - - -\n" + std::string(kVersion2Mount));
  Write("/sys/fs/cgroup/memory.max", "-5\n");
  EXPECT_EQ(Read().source, "physical memory");
  Write("/sys/fs/cgroup/memory.max", "12 34\n");
  EXPECT_EQ(Read().source, "physical memory");
  Write("/sys/fs/cgroup/memory.max", "");
  EXPECT_EQ(Read().source, "physical memory");
}

TEST(MemoryLimit, OfThisMachineIsPositive) {
  const MemoryLimit limit = ReadMemoryLimit();
  EXPECT_GT(limit.bytes, 0);
  EXPECT_FALSE(limit.source.empty());
}

TEST(DefaultKvBudget, IsHalfOrWhatWeightsAndReserveLeave) {
  EXPECT_EQ(DefaultKvBudget(8192 * kMiB, 0), 4096 * kMiB);
  EXPECT_EQ(DefaultKvBudget(8192 * kMiB, 3584 * kMiB), 4096 * kMiB);
  EXPECT_EQ(DefaultKvBudget(8192 * kMiB, 3585 * kMiB), 4095 * kMiB);
  EXPECT_EQ(DefaultKvBudget(8192 * kMiB, 7680 * kMiB), 0);
  EXPECT_EQ(DefaultKvBudget(8192 * kMiB, 9000 * kMiB), 0);
  EXPECT_EQ(DefaultKvBudget(0, 0), 0);
}

}  // namespace
}  // namespace attnserve
