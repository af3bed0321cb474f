#include "lib/cache/kv_block_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "lib/base/aligned_buffer.h"
#include "lib/base/errors.h"

namespace attnserve {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kMostSpareBytes = 4 * kMiB;

std::string Reason(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return detail ? detail->reason : "";
}

TEST(KvBlockPool, ChargesUpToTheBudget) {
  KvBlockPool pool(1000);
  EXPECT_TRUE(pool.Charge(0).ok());
  EXPECT_TRUE(pool.Charge(600).ok());
  EXPECT_TRUE(pool.Charge(400).ok());
  EXPECT_EQ(pool.usage().charged_bytes, 1000);
  EXPECT_EQ(pool.usage().budget_bytes, 1000);
}

TEST(KvBlockPool, ChargeBeyondTheBudgetChangesNothing) {
  KvBlockPool pool(1000);
  ASSERT_TRUE(pool.Charge(600).ok());
  const absl::Status status = pool.Charge(401);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Reason(status), "KV_BUDGET");
  const auto detail = GetErrorDetail(status);
  EXPECT_EQ(detail->metadata.at("needed_bytes"), "401");
  EXPECT_EQ(detail->metadata.at("free_bytes"), "400");
  EXPECT_EQ(pool.usage().charged_bytes, 600);
  pool.Refund(600);
  EXPECT_TRUE(pool.Charge(1000).ok());
}

TEST(KvBlockPool, UnlimitedBudgetDoesNotOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  KvBlockPool pool(kMost);
  ASSERT_TRUE(pool.Charge(kMost - 1).ok());
  EXPECT_EQ(Reason(pool.Charge(kMost)), "KV_BUDGET");
  EXPECT_TRUE(pool.Charge(1).ok());
}

TEST(KvBlockPool, BlockBeyondAnyMemoryIsNull) {
  KvBlockPool pool(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(pool.Allocate(std::numeric_limits<int64_t>::max()), nullptr);
  EXPECT_EQ(pool.Allocate((int64_t{1} << 46) - 64), nullptr);
  EXPECT_EQ(pool.usage().block_bytes, 0);
  EXPECT_EQ(pool.usage().slab_free_bytes, 0);
}

TEST(KvBlockPool, ReusesASlabThatWasEmptied) {
  KvBlockPool pool(kMiB);
  void* const first = pool.Allocate(4096);
  pool.Free(first, 4096);
  EXPECT_EQ(pool.Allocate(4096), first);
  pool.Free(first, 4096);
}

TEST(KvBlockPool, KeepsOneEmptySlabAtMost) {
  KvBlockPool pool(kMiB);
  for (const int64_t bytes : {64, 4096, 100000, 3 << 20}) pool.Free(pool.Allocate(bytes), bytes);
  EXPECT_EQ(pool.usage().block_bytes, 0);
  EXPECT_LE(pool.usage().slab_free_bytes, kMostSpareBytes);
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(pool.Allocate(kMiB / 2));
  EXPECT_EQ(pool.usage().block_bytes, 50 * kMiB);
  for (void* block : blocks) pool.Free(block, kMiB / 2);
  EXPECT_LE(pool.usage().slab_free_bytes, kMostSpareBytes);
}

TEST(KvBlockPool, GivesALargeEmptySlabBack) {
  KvBlockPool pool(kMiB);
  void* const block = pool.Allocate(64 * kMiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(pool.usage().slab_free_bytes, 0);
  pool.Free(block, 64 * kMiB);
  EXPECT_EQ(pool.usage().slab_free_bytes, 0);
}

// Every block is checked against all others that are in use, and keeps what was written to it.
TEST(KvBlockPool, RandomBlocksAreAlignedDisjointAndCounted) {
  struct Block {
    int64_t bytes;
    uint8_t mark;
  };
  KvBlockPool pool(kMiB);
  std::mt19937 random(1);
  const std::vector<int64_t> sizes = {1,        63,
                                      64,       65,
                                      6080,     65536,
                                      99968,    1048576,
                                      1300000,  2 * kMiB - 64,
                                      2 * kMiB, 2 * kMiB + 64,
                                      5 * kMiB};
  std::map<uint8_t*, Block> used;
  int64_t bytes_used = 0;
  const auto free_one = [&](std::map<uint8_t*, Block>::iterator it) {
    const auto [bytes, mark] = it->second;
    EXPECT_EQ(it->first[0], mark);
    EXPECT_EQ(it->first[bytes / 2], mark);
    EXPECT_EQ(it->first[bytes - 1], mark);
    pool.Free(it->first, bytes);
    bytes_used -= bytes;
    used.erase(it);
  };
  for (int step = 0; step < 3000; ++step) {
    const bool grow = random() % 1000 < (step < 1500 ? 600u : 400u);
    if (grow || used.empty()) {
      const int64_t bytes = sizes[random() % sizes.size()];
      uint8_t* const data = static_cast<uint8_t*>(pool.Allocate(bytes));
      ASSERT_NE(data, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kKernelAlignment, 0u);
      const auto next = used.lower_bound(data);
      if (next != used.end()) {
        ASSERT_LE(data + bytes, next->first);
      }
      if (next != used.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second.bytes, data);
      }
      const uint8_t mark = static_cast<uint8_t>(random());
      data[0] = data[bytes / 2] = data[bytes - 1] = mark;
      used[data] = {bytes, mark};
      bytes_used += bytes;
    } else {
      free_one(std::next(used.begin(), static_cast<int64_t>(random() % used.size())));
    }
    ASSERT_EQ(pool.usage().block_bytes, bytes_used);
    ASSERT_GE(pool.usage().slab_free_bytes, 0);
  }
  while (!used.empty()) free_one(used.begin());
  EXPECT_EQ(pool.usage().block_bytes, 0);
  EXPECT_LE(pool.usage().slab_free_bytes, kMostSpareBytes);
}

TEST(KvBlockPool, ThreadsDoNotShareBlocks) {
  KvBlockPool pool(std::numeric_limits<int64_t>::max());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      std::vector<uint8_t*> blocks;
      for (int step = 0; step < 500; ++step) {
        if (random() % 2 == 0 || blocks.empty()) {
          ASSERT_TRUE(pool.Charge(10240).ok());
          blocks.push_back(static_cast<uint8_t*>(pool.Allocate(10240)));
          std::memset(blocks.back(), t, 10240);
        } else {
          EXPECT_EQ(blocks.back()[random() % 10240], t);
          pool.Free(blocks.back(), 10240);
          blocks.pop_back();
          pool.Refund(10240);
        }
      }
      for (uint8_t* block : blocks) pool.Free(block, 10240);
      pool.Refund(static_cast<int64_t>(blocks.size()) * 10240);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.usage().charged_bytes, 0);
  EXPECT_EQ(pool.usage().block_bytes, 0);
}

}  // namespace
}  // namespace attnserve
