// Errors of calls: gRPC's codes as absl::Status, with the details the server sent.
//
// A details message stays in the absl::Status as the payload of its type, for example
// "type.googleapis.com/google.rpc.ErrorInfo", in serialized form.
#ifndef ATTNSERVE_CLIENT_STATUS_H_
#define ATTNSERVE_CLIENT_STATUS_H_

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace grpc {
class Status;
}
namespace google::rpc {
class Status;
}

namespace attnserve::client {

// The cause of an error, for programs. AttentionService's comments list the reasons of each call.
struct ErrorInfo {
  std::string reason;                           // UPPER_SNAKE_CASE, for example "KV_BUDGET"
  std::string domain;                           // "attnserve"
  std::map<std::string, std::string> metadata;  // facts, for example {"length": "17"}
};

// A field of a request that is wrong.
struct FieldViolation {
  std::string field;        // its path, for example "masks.key_mask"
  std::string description;  // what came and what was expected
};

// What the server says about the cause; nullopt for OK and for errors that gRPC itself made (no
// connection, message too large, the client's own deadline).
std::optional<ErrorInfo> GetErrorInfo(const absl::Status& status);

// The reason of GetErrorInfo, or "".
std::string ErrorReason(const absl::Status& status);

// How long the server asks to wait before another try; nullopt where it does not say.
std::optional<std::chrono::milliseconds> GetRetryDelay(const absl::Status& status);

// The wrong fields of an INVALID_ARGUMENT error; empty for others.
std::vector<FieldViolation> GetFieldViolations(const absl::Status& status);

// The outcome of a call, details included. To what gRPC says of a message above the limit, which
// has none, it adds what can be done.
absl::Status FromGrpcStatus(const ::grpc::Status& status);

// The outcome of one step of a batch or stream (DecodeResult.status).
absl::Status FromRpcStatus(const ::google::rpc::Status& status);

}  // namespace attnserve::client

#endif  // ATTNSERVE_CLIENT_STATUS_H_
