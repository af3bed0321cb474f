#include "lib/session/tombstones.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lib/base/errors.h"

namespace attnserve {
namespace {

using Time = std::chrono::steady_clock::time_point;

constexpr Time At(int64_t seconds) { return Time(std::chrono::seconds(seconds)); }

Tombstone Ended(const std::string& id, EndReason reason, int64_t seconds) {
  Tombstone tombstone;
  tombstone.id = id;
  tombstone.reason = reason;
  tombstone.end_time_steady = At(seconds);
  return tombstone;
}

std::string WhyGone(const Tombstones& tombstones, const std::string& id, int64_t seconds) {
  return GetErrorDetail(tombstones.WhyGone(id, At(seconds)))->reason;
}

TEST(Tombstones, SayWhyASessionEnded) {
  Tombstones tombstones;
  tombstones.Add(Ended("expired", EndReason::kExpired, 0));
  tombstones.Add(Ended("deleted", EndReason::kDeleted, 0));
  EXPECT_EQ(WhyGone(tombstones, "expired", 10), "SESSION_EXPIRED");
  EXPECT_EQ(WhyGone(tombstones, "deleted", 10), "SESSION_NOT_FOUND");
  EXPECT_EQ(WhyGone(tombstones, "unknown", 10), "SESSION_NOT_FOUND");
}

TEST(Tombstones, LatestEndOfAnIdCounts) {
  Tombstones tombstones;
  tombstones.Add(Ended("a", EndReason::kExpired, 0));
  tombstones.Add(Ended("a", EndReason::kDeleted, 1));
  EXPECT_EQ(WhyGone(tombstones, "a", 2), "SESSION_NOT_FOUND");
}

TEST(Tombstones, AreForgottenAfterAnHour) {
  Tombstones tombstones;
  tombstones.Add(Ended("a", EndReason::kExpired, 0));
  EXPECT_EQ(WhyGone(tombstones, "a", 3599), "SESSION_EXPIRED");
  EXPECT_EQ(WhyGone(tombstones, "a", 3600), "SESSION_NOT_FOUND");
  EXPECT_TRUE(tombstones.Latest(10, At(3600)).empty());
}

TEST(Tombstones, OnlyTheLastTenThousandAreKept) {
  Tombstones tombstones;
  for (size_t i = 0; i <= Tombstones::kCount; ++i) {
    tombstones.Add(Ended(std::to_string(i), EndReason::kExpired, 0));
  }
  EXPECT_EQ(WhyGone(tombstones, "0", 1), "SESSION_NOT_FOUND");
  EXPECT_EQ(WhyGone(tombstones, "1", 1), "SESSION_EXPIRED");
  EXPECT_EQ(tombstones.Latest(3, At(1)).front().id, std::to_string(Tombstones::kCount));
}

TEST(SessionIds, AreCheckedAtTheirEdges) {
  EXPECT_TRUE(CheckSessionId("session_id", std::string(128, 'a')).ok());
  EXPECT_TRUE(CheckSessionId("session_id", "A.z_9~-").ok());
  for (const std::string& id : {std::string(), std::string(129, 'a'), std::string("a b"),
                                std::string("\xc3\xa9"), std::string("a\0b", 3)}) {
    EXPECT_FALSE(CheckSessionId("session_id", id).ok()) << id;
  }
}

TEST(SessionIds, TheWrongCharacterIsNamed) {
  const auto problem = [](std::string_view id) {
    return std::string(CheckSessionId("session_id", id).message());
  };
  EXPECT_THAT(problem("a b"), testing::HasSubstr("has ' ' as character 2; expected 1 to 128 of"));
  EXPECT_THAT(problem("ab\n"), testing::HasSubstr("has '\\n' as character 3"));
  EXPECT_THAT(problem(std::string(129, ' ')), testing::HasSubstr("came with 129 characters"));
}

TEST(SessionIds, RandomOnesAreLongAndDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string id = RandomId();
    EXPECT_EQ(id.size(), 32u);
    EXPECT_TRUE(seen.insert(id).second);
  }
}

}  // namespace
}  // namespace attnserve
