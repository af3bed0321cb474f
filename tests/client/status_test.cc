#include "attnserve/client/status.h"

#include <gmock/gmock.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace attnserve::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

google::rpc::Status BudgetError() {
  google::rpc::Status status;
  status.set_code(8);
  status.set_message("no memory");
  google::rpc::ErrorInfo info;
  info.set_reason("KV_BUDGET");
  info.set_domain("attnserve");
  (*info.mutable_metadata())["free_bytes"] = "12";
  status.add_details()->PackFrom(info);
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(2);
  retry.mutable_retry_delay()->set_nanos(1);
  status.add_details()->PackFrom(retry);
  return status;
}

void ExpectBudgetError(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(status.message()), "no memory");
  const std::optional<ErrorInfo> info = GetErrorInfo(status);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, "KV_BUDGET");
  EXPECT_EQ(info->domain, "attnserve");
  EXPECT_THAT(info->metadata, ElementsAre(Pair("free_bytes", "12")));
  EXPECT_EQ(ErrorReason(status), "KV_BUDGET");
  EXPECT_EQ(GetRetryDelay(status), std::chrono::milliseconds(2001)) << "rounded up";
  EXPECT_TRUE(GetFieldViolations(status).empty());
}

TEST(Status, TrailerDetailsSurvive) {
  const google::rpc::Status sent = BudgetError();
  ExpectBudgetError(FromGrpcStatus(::grpc::Status(::grpc::StatusCode::RESOURCE_EXHAUSTED,
                                                  sent.message(), sent.SerializeAsString())));
}

TEST(Status, DetailsOfAStepSurvive) { ExpectBudgetError(FromRpcStatus(BudgetError())); }

TEST(Status, WrongFieldsAreListed) {
  google::rpc::Status sent;
  sent.set_code(3);
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field("masks.key_mask");
  violation->set_description("too long");
  sent.add_details()->PackFrom(bad);
  const std::vector<FieldViolation> violations = GetFieldViolations(FromRpcStatus(sent));
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].field, "masks.key_mask");
  EXPECT_EQ(violations[0].description, "too long");
}

TEST(Status, OkIsOk) {
  EXPECT_TRUE(FromGrpcStatus(::grpc::Status::OK).ok());
  EXPECT_TRUE(FromRpcStatus(google::rpc::Status()).ok());
  EXPECT_FALSE(GetErrorInfo(absl::OkStatus()).has_value());
  EXPECT_EQ(ErrorReason(absl::OkStatus()), "");
}

TEST(Status, ErrorsOfGrpcItselfHaveNoInfo) {
  const absl::Status status =
      FromGrpcStatus(::grpc::Status(::grpc::StatusCode::UNAVAILABLE, "refused", "not a message"));
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_FALSE(GetErrorInfo(status).has_value());
  EXPECT_FALSE(GetRetryDelay(status).has_value());
}

TEST(Status, MessageAboveTheLimitSaysWhatToDo) {
  const absl::Status status = FromGrpcStatus(::grpc::Status(
      ::grpc::StatusCode::RESOURCE_EXHAUSTED, "Received message larger than max (2 vs. 1)"));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Received message larger than max (2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("send less at once"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max_message_bytes"));
}

}  // namespace
}  // namespace attnserve::client
