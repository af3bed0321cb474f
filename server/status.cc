#include "server/status.h"

#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "google/protobuf/duration.pb.h"
#include "google/rpc/error_details.pb.h"
#include "lib/base/errors.h"

namespace attnserve {
namespace {

// Three of these, and the message twice, fit into kMaxDetailBytes.
constexpr size_t kMaxFactBytes = 256;
constexpr size_t kMaxDescriptionBytes = 512;

// At most `limit` bytes of `text`, not ending inside a UTF-8 character.
std::string Cut(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) --end;
  return std::string(text.substr(0, end));
}

std::string Description(std::string_view message, std::string_view field) {
  const std::string prefix = absl::StrCat(std::string(field), ": ");
  if (message.substr(0, prefix.size()) == prefix) message.remove_prefix(prefix.size());
  return Cut(message, kMaxDescriptionBytes);
}

void AddDetails(const ErrorDetail& detail, std::string_view message, google::rpc::Status* status) {
  google::rpc::ErrorInfo info;
  info.set_reason(detail.reason);
  info.set_domain("attnserve");
  for (const auto& [key, value] : detail.metadata) {
    (*info.mutable_metadata())[key] = Cut(value, kMaxFactBytes);
  }
  status->add_details()->PackFrom(info);
  if (!detail.field.empty() && status->code() == grpc::StatusCode::INVALID_ARGUMENT) {
    google::rpc::BadRequest bad;
    auto* violation = bad.add_field_violations();
    violation->set_field(Cut(detail.field, kMaxFactBytes));
    violation->set_description(Description(message, detail.field));
    status->add_details()->PackFrom(bad);
  }
  if (detail.retry_after_ms > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(detail.retry_after_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(
        static_cast<int32_t>(detail.retry_after_ms % 1000 * 1000000));
    status->add_details()->PackFrom(retry);
  }
}

}  // namespace

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status result;
  result.set_code(static_cast<int32_t>(status.code()));
  const std::string_view message(status.message().data(), status.message().size());
  result.set_message(Cut(message, kMaxMessageBytes));
  if (const std::optional<ErrorDetail> detail = GetErrorDetail(status)) {
    AddDetails(*detail, message, &result);
  }
  return result;
}

void Shorten(size_t limit, google::rpc::Status* status) {
  if (status->ByteSizeLong() <= limit) return;
  if (status->details_size() > 1) {
    status->mutable_details()->DeleteSubrange(1, status->details_size() - 1);
  }
  const size_t size = status->ByteSizeLong();
  if (size <= limit) return;
  const size_t excess = size - limit, length = status->message().size();
  status->set_message(Cut(status->message(), length > excess ? length - excess : 0));
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status rich = ToRpcStatus(status);
  return grpc::Status(static_cast<grpc::StatusCode>(rich.code()), rich.message(),
                      rich.details().empty() ? std::string() : rich.SerializeAsString());
}

}  // namespace attnserve
