#include "attnserve/client/status.h"

#include <grpcpp/support/status.h>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace attnserve::client {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com/";

template <typename Message>
bool ReadDetail(const absl::Status& status, Message* message) {
  const std::string type = kTypePrefix + std::string(Message::descriptor()->full_name());
  const absl::optional<absl::Cord> payload = status.GetPayload(type);
  return payload.has_value() && message->ParseFromString(std::string(*payload));
}

absl::Status MakeStatus(int code, const std::string& message, const google::rpc::Status& details) {
  absl::Status status(static_cast<absl::StatusCode>(code),
                      absl::string_view(message.data(), message.size()));
  for (const google::protobuf::Any& detail : details.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

}  // namespace

std::optional<ErrorInfo> GetErrorInfo(const absl::Status& status) {
  google::rpc::ErrorInfo detail;
  if (!ReadDetail(status, &detail)) return std::nullopt;
  return ErrorInfo{
      detail.reason(), detail.domain(), {detail.metadata().begin(), detail.metadata().end()}};
}

std::string ErrorReason(const absl::Status& status) {
  const std::optional<ErrorInfo> info = GetErrorInfo(status);
  return info.has_value() ? info->reason : "";
}

std::optional<std::chrono::milliseconds> GetRetryDelay(const absl::Status& status) {
  google::rpc::RetryInfo detail;
  if (!ReadDetail(status, &detail)) return std::nullopt;
  constexpr int64_t kNanosPerMilli = 1000000;
  const int64_t nanos = detail.retry_delay().nanos();
  return std::chrono::seconds(detail.retry_delay().seconds()) +
         std::chrono::milliseconds((nanos + kNanosPerMilli - 1) / kNanosPerMilli);
}

std::vector<FieldViolation> GetFieldViolations(const absl::Status& status) {
  std::vector<FieldViolation> violations;
  google::rpc::BadRequest detail;
  if (!ReadDetail(status, &detail)) return violations;
  for (const auto& violation : detail.field_violations()) {
    violations.push_back({violation.field(), violation.description()});
  }
  return violations;
}

absl::Status FromGrpcStatus(const ::grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  std::string message = status.error_message();
  if (details.details().empty() && absl::StrContains(message, "message larger than max")) {
    message += "; send less at once, or raise the server's --max_message_bytes";
  }
  return MakeStatus(static_cast<int>(status.error_code()), message, details);
}

absl::Status FromRpcStatus(const google::rpc::Status& status) {
  if (status.code() == 0) return absl::OkStatus();
  return MakeStatus(status.code(), status.message(), status);
}

}  // namespace attnserve::client
