#include "lib/base/errors.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnserve {
namespace {

using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Every builder of the catalogue with its code and reason.
struct CatalogueEntry {
  absl::Status status;
  absl::StatusCode code;
  const char* reason;
};

std::vector<CatalogueEntry> Catalogue() {
  using Code = absl::StatusCode;
  return {
      {BadShape("x", "t"), Code::kInvalidArgument, "BAD_SHAPE"},
      {BadDType("x", "t"), Code::kInvalidArgument, "BAD_DTYPE"},
      {BadMask("x", "t"), Code::kInvalidArgument, "BAD_MASK"},
      {SizeMismatch("x", "t"), Code::kInvalidArgument, "SIZE_MISMATCH"},
      {BadOption("x", "t"), Code::kInvalidArgument, "BAD_OPTION"},
      {TooLarge("x", "t"), Code::kInvalidArgument, "TOO_LARGE"},
      {ModelNotFound("m", "a, b"), Code::kNotFound, "MODEL_NOT_FOUND"},
      {ModelNotChosen("a, b"), Code::kNotFound, "MODEL_NOT_FOUND"},
      {LayerNotFound(7, 4), Code::kNotFound, "LAYER_NOT_FOUND"},
      {SessionNotFound("s"), Code::kNotFound, "SESSION_NOT_FOUND"},
      {SessionExpired("s", 1000), Code::kNotFound, "SESSION_EXPIRED"},
      {SessionExists("s"), Code::kAlreadyExists, "SESSION_EXISTS"},
      {PositionConflict(3, 5), Code::kAborted, "POSITION_CONFLICT"},
      {PredecessorFailed(), Code::kAborted, "PREDECESSOR_FAILED"},
      {PositionBeyondLength("x", 9, 5, "send less"), Code::kOutOfRange, "POSITION_BEYOND_LENGTH"},
      {MaxTokensExceeded(9, 8, "send less"), Code::kOutOfRange, "MAX_TOKENS"},
      {LayerNeedsContext(2), Code::kFailedPrecondition, "LAYER_NEEDS_CONTEXT"},
      {KvBudgetExceeded(10, 4, 5, 20), Code::kResourceExhausted, "KV_BUDGET"},
      {QueueFull("steps", 4), Code::kResourceExhausted, "QUEUE_FULL"},
      {SessionLimit(4), Code::kResourceExhausted, "SESSION_LIMIT"},
      {ResponseTooLarge("the stages", 9, 4, "send less"), Code::kResourceExhausted,
       "RESPONSE_TOO_LARGE"},
      {Draining(), Code::kUnavailable, "DRAINING"},
      {KernelFailure("t"), Code::kInternal, "KERNEL_FAILURE"},
  };
}

TEST(Errors, EveryEntryHasItsCodeReasonAndText) {
  for (const CatalogueEntry& entry : Catalogue()) {
    SCOPED_TRACE(entry.reason);
    EXPECT_EQ(entry.status.code(), entry.code);
    EXPECT_FALSE(entry.status.message().empty());
    const std::optional<ErrorDetail> detail = GetErrorDetail(entry.status);
    ASSERT_TRUE(detail.has_value());
    EXPECT_EQ(detail->reason, entry.reason);
  }
}

TEST(Errors, DetailSurvivesTheRoundTrip) {
  const std::optional<ErrorDetail> detail = GetErrorDetail(KvBudgetExceeded(10, 4, 5, 20));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field, "");
  EXPECT_EQ(detail->metadata,
            (std::map<std::string, std::string>{{"needed_bytes", "10"}, {"free_bytes", "5"}}));
  EXPECT_GT(detail->retry_after_ms, 0);
}

TEST(Errors, RetryIsAskedForOnlyIfTheBudgetHasRoomForBoth) {
  EXPECT_GT(GetErrorDetail(KvBudgetExceeded(16, 4, 5, 20))->retry_after_ms, 0);
  const absl::Status never = KvBudgetExceeded(17, 4, 5, 20);
  EXPECT_EQ(GetErrorDetail(never)->retry_after_ms, 0);
  EXPECT_THAT(Message(never), HasSubstr("needs 17 more bytes beside the 4 it holds"));
  EXPECT_THAT(Message(never), Not(HasSubstr("wait")));
}

TEST(Errors, AnyBytesInFieldsAndMetadataSurvive) {
  const std::string odd("a:b\0c;12:\n\"", 11);
  EXPECT_EQ(GetErrorDetail(BadShape(odd, "t"))->field, odd);
  EXPECT_EQ(GetErrorDetail(SessionNotFound(odd))->metadata.at("session_id"), odd);
  EXPECT_EQ(GetErrorDetail(SessionNotFound(""))->metadata.at("session_id"), "");
}

TEST(Errors, OnlyOursHaveDetail) {
  EXPECT_FALSE(GetErrorDetail(absl::OkStatus()).has_value());
  EXPECT_FALSE(GetErrorDetail(absl::InvalidArgumentError("theirs")).has_value());
  EXPECT_EQ(CallCancelled().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(CallDeadlineExceeded().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Errors, MessageNamesTheField) {
  EXPECT_THAT(Message(BadShape("steps[3].x", "has 2 dimensions")), HasSubstr("steps[3].x"));
  EXPECT_THAT(Message(BadShape("steps[3].x", "has 2 dimensions")), HasSubstr("has 2 dimensions"));
}

TEST(WithFieldPrefix, GoesBeforeTheFieldInDetailAndMessage) {
  const absl::Status status =
      WithFieldPrefix(PositionBeyondLength("length", 9, 5, "keep less"), "steps[3].");
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  const std::optional<ErrorDetail> detail = GetErrorDetail(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field, "steps[3].length");
  EXPECT_EQ(detail->reason, "POSITION_BEYOND_LENGTH");
  EXPECT_EQ(detail->metadata.at("length"), "5");
  EXPECT_THAT(Message(status), testing::StartsWith("steps[3].length is 9"));
}

TEST(WithFieldPrefix, LeavesOthersAlone) {
  EXPECT_TRUE(WithFieldPrefix(absl::OkStatus(), "steps[3].").ok());
  EXPECT_EQ(WithFieldPrefix(SessionNotFound("s"), "steps[3]."), SessionNotFound("s"));
  EXPECT_EQ(WithFieldPrefix(absl::InternalError("t"), "x."), absl::InternalError("t"));
}

}  // namespace
}  // namespace attnserve
