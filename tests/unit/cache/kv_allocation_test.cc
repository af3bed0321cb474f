#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "lib/cache/kv_sequence.h"
#include "tests/unit/cache/allocation_counter.h"

namespace attnserve {
namespace {

TEST(KvSequence, SteadyDecodeAllocatesOnlyForNewBlocks) {
  const KvLayout layout{2, 16, 16, DType::kF16};
  KvBlockPool pool(std::numeric_limits<int64_t>::max());
  const std::vector<float> data(32, 1.0f);
  const HeadsView heads{DType::kF32, data.data(), 1, 2, 16, 32, 16};
  KvSequence sequence(layout, &pool);
  EXPECT_GT(AllocationCount(), 0);  // the counter counts
  for (int64_t t = 0; t < 1000; ++t) {
    const int64_t before = AllocationCount();
    const bool new_block = t % kTokensPerBlock == 0;
    ASSERT_TRUE(sequence.Reserve(t + 1).ok());
    const int64_t position = t + 1;  // not the index: positions are kept
    sequence.Extend(1, &position);
    sequence.WriteTokens(t, heads, heads, 0, 2);
    if (!new_block) {
      ASSERT_EQ(AllocationCount(), before) << "token " << t;
    }
  }
}

}  // namespace
}  // namespace attnserve
