#include "lib/session/reply_cache.h"

#include <utility>

#include "gtest/gtest.h"

namespace attnserve {
namespace {

constexpr int64_t kBudget = int64_t{64} << 20;

class ReplyCacheTest : public ::testing::Test {
 protected:
  // Keeps a reply of `bytes` for a step that ended with `length` tokens.
  void Keep(const std::string& id, int64_t length, int64_t bytes = 100) {
    const int64_t charge = ReplyCache::ChargeFor(bytes);
    ASSERT_TRUE(pool_.Charge(charge).ok());
    KeptReply reply = cache_.MakeRoom(charge);
    reply.length = length;
    reply.parts.resize(1);
    reply.parts[0].bytes.assign(static_cast<size_t>(bytes), 'x');
    cache_.Add(id, charge, std::move(reply));
  }
  int64_t charged() const { return pool_.usage().charged_bytes; }

  KvBlockPool pool_{kBudget};
  ReplyCache cache_{&pool_};
};

TEST_F(ReplyCacheTest, FindsWhatWasKept) {
  Keep("a", 1);
  Keep("b", 2);
  ASSERT_NE(cache_.Find("a"), nullptr);
  EXPECT_EQ(cache_.Find("a")->length, 1);
  EXPECT_EQ(cache_.Find("c"), nullptr);
  EXPECT_FALSE(cache_.WasApplied("a"));
}

TEST_F(ReplyCacheTest, OldestGoesWhenTheCountIsReached) {
  for (size_t i = 0; i <= ReplyCache::kReplies; ++i) {
    Keep(std::to_string(i), static_cast<int64_t>(i));
  }
  EXPECT_EQ(cache_.Find("0"), nullptr);
  EXPECT_TRUE(cache_.WasApplied("0"));
  EXPECT_NE(cache_.Find("1"), nullptr);
  EXPECT_EQ(charged(), static_cast<int64_t>(ReplyCache::kReplies) * ReplyCache::ChargeFor(100));
  EXPECT_EQ(charged(), cache_.bytes());
}

TEST_F(ReplyCacheTest, OldestGoWhenTheBytesAreReached) {
  const int64_t third = ReplyCache::kBytes / 3;
  for (const char* id : {"a", "b", "c"}) Keep(id, 1, third);
  EXPECT_EQ(cache_.Find("a"), nullptr);
  EXPECT_NE(cache_.Find("b"), nullptr);
  EXPECT_LE(cache_.bytes(), ReplyCache::kBytes);
}

TEST_F(ReplyCacheTest, MemoryOfADroppedReplyIsUsedAgainOrGivenBack) {
  const int64_t large = ReplyCache::kBytes / 2;
  for (int i = 0; i < 4; ++i) Keep(std::to_string(i), i, large);
  const KeptReply again = cache_.MakeRoom(ReplyCache::ChargeFor(large));
  ASSERT_EQ(again.parts.size(), 1u);
  EXPECT_GE(again.parts[0].bytes.capacity(), static_cast<size_t>(large));
  // A small reply does not sit in the memory of a large one.
  Keep("large", 5, large);
  for (size_t i = 0; i < ReplyCache::kReplies - 1; ++i) Keep("small" + std::to_string(i), 6);
  const KeptReply small = cache_.MakeRoom(ReplyCache::ChargeFor(100));
  EXPECT_TRUE(small.parts.empty());
  EXPECT_TRUE(cache_.WasApplied("large"));
}

TEST_F(ReplyCacheTest, RememberedStepsCountAsApplied) {
  cache_.Prepare();
  cache_.Remember("a", 3);
  EXPECT_EQ(cache_.Find("a"), nullptr);
  EXPECT_TRUE(cache_.WasApplied("a"));
  cache_.Forget(2);
  EXPECT_FALSE(cache_.WasApplied("a"));
}

TEST_F(ReplyCacheTest, ForgetDropsWhatEndedLater) {
  for (int i = 1; i <= 40; ++i) Keep(std::to_string(i), i);  // 1 to 8 are only remembered by id
  cache_.Forget(20);
  EXPECT_NE(cache_.Find("20"), nullptr);
  EXPECT_EQ(cache_.Find("21"), nullptr);
  EXPECT_FALSE(cache_.WasApplied("21"));
  EXPECT_TRUE(cache_.WasApplied("8"));
  cache_.Forget(5);
  EXPECT_FALSE(cache_.WasApplied("8"));
  EXPECT_TRUE(cache_.WasApplied("5"));
  EXPECT_EQ(cache_.bytes(), 0);
  EXPECT_EQ(charged(), 0);
}

TEST_F(ReplyCacheTest, IdsAreForgottenInTheEnd) {
  const int count = static_cast<int>(ReplyCache::kReplies + ReplyCache::kForgottenIds) + 1;
  for (int i = 0; i < count; ++i) Keep(std::to_string(i), i);
  EXPECT_FALSE(cache_.WasApplied("0"));
  EXPECT_TRUE(cache_.WasApplied("1"));
}

TEST(ReplyCache, DestructionRefundsEverything) {
  KvBlockPool pool(kBudget);
  {
    ReplyCache cache(&pool);
    ASSERT_TRUE(pool.Charge(ReplyCache::ChargeFor(10)).ok());
    cache.Add("a", ReplyCache::ChargeFor(10), KeptReply());
  }
  EXPECT_EQ(pool.usage().charged_bytes, 0);
}

}  // namespace
}  // namespace attnserve
