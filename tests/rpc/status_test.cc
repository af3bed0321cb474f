#include "server/status.h"

#include <string>

#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "lib/base/errors.h"
#include "tests/rpc/test_server.h"

namespace attnserve {
namespace {

using testing::ErrorOf;
using testing::RpcError;

TEST(Status, OkHasNoDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).error_details().empty());
  EXPECT_EQ(ToRpcStatus(absl::OkStatus()).code(), 0);
}

TEST(Status, BadArgumentNamesTheField) {
  const RpcError error = ErrorOf(ToGrpcStatus(BadShape("steps[3].q", "came as [1]")));
  EXPECT_EQ(error.code, grpc::INVALID_ARGUMENT);
  EXPECT_EQ(error.reason, "BAD_SHAPE");
  EXPECT_EQ(error.field, "steps[3].q");
  EXPECT_EQ(error.message, "steps[3].q: came as [1]");
}

TEST(Status, DescriptionLeavesOutTheField) {
  const google::rpc::Status status = ToRpcStatus(BadShape("x", "came as [1]"));
  google::rpc::BadRequest bad;
  ASSERT_TRUE(status.details(1).UnpackTo(&bad));
  EXPECT_EQ(bad.field_violations(0).description(), "came as [1]");
}

TEST(Status, QuotaSaysWhenToTryAgain) {
  const RpcError error = ErrorOf(ToGrpcStatus(KvBudgetExceeded(10, 0, 5, 100)));
  EXPECT_EQ(error.code, grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.reason, "KV_BUDGET");
  EXPECT_GT(error.retry_seconds, 0);
  EXPECT_EQ(error.metadata.at("needed_bytes"), "10");
}

TEST(Status, ConflictCarriesTheLength) {
  const RpcError error = ErrorOf(ToRpcStatus(PositionConflict(3, 7)));
  EXPECT_EQ(error.code, grpc::ABORTED);
  EXPECT_EQ(error.metadata.at("length"), "7");
}

TEST(Status, CancellationHasNoReason) {
  EXPECT_EQ(ErrorOf(ToGrpcStatus(CallCancelled())).code, grpc::CANCELLED);
  EXPECT_EQ(ErrorOf(ToGrpcStatus(CallCancelled())).reason, "");
  EXPECT_EQ(ErrorOf(ToGrpcStatus(CallDeadlineExceeded())).code, grpc::DEADLINE_EXCEEDED);
}

TEST(Status, LongTextsAreCutBetweenCharacters) {
  std::string long_text;
  for (int i = 0; i < 5000; ++i) long_text += "\u00e9";  // two bytes each
  for (const absl::Status& status :
       {BadShape("x" + long_text, long_text), ModelNotFound(long_text, long_text),
        SessionNotFound(long_text), BadOption(long_text, "y")}) {
    const grpc::Status result = ToGrpcStatus(status);
    EXPECT_LE(result.error_message().size(), kMaxMessageBytes);
    EXPECT_LE(result.error_details().size(), kMaxDetailBytes);
    google::rpc::Status rich;
    // proto3 refuses strings that are not UTF-8.
    ASSERT_TRUE(rich.ParseFromString(result.error_details()));
    google::rpc::ErrorInfo info;
    ASSERT_TRUE(rich.details(0).UnpackTo(&info));
  }
}

}  // namespace
}  // namespace attnserve
