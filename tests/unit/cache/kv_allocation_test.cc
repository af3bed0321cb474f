#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#include "lib/cache/kv_sequence.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace attnserve {
namespace {

TEST(KvSequence, SteadyDecodeAllocatesOnlyForNewBlocks) {
  const KvLayout layout{2, 16, 16, DType::kF16};
  KvBlockPool pool(std::numeric_limits<int64_t>::max());
  const std::vector<float> data(32, 1.0f);
  const HeadsView heads{DType::kF32, data.data(), 1, 2, 16, 32, 16};
  KvSequence sequence(layout, &pool);
  for (int64_t t = 0; t < 1000; ++t) {
    const int64_t before = allocations;
    const bool new_block = t % kTokensPerBlock == 0;
    ASSERT_TRUE(sequence.Reserve(t + 1).ok());
    const int64_t position = t + 1;  // not the index: positions are kept
    sequence.Extend(1, &position);
    sequence.WriteTokens(t, heads, heads, 0, 2);
    if (!new_block) {
      ASSERT_EQ(allocations, before) << "token " << t;
    }
  }
}

}  // namespace
}  // namespace attnserve
