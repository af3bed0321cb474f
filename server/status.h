// The only place where our errors become gRPC's.
#ifndef ATTNSERVE_SERVER_STATUS_H_
#define ATTNSERVE_SERVER_STATUS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace attnserve {

// Longest message, in bytes. With the details it stays far below the 8 KiB of trailing metadata
// that make gRPC replace any status by RESOURCE_EXHAUSTED.
inline constexpr size_t kMaxMessageBytes = 1024;
inline constexpr size_t kMaxDetailBytes = 4096;

// Code, message (cut at kMaxMessageBytes, between characters) and, where the error is one of the
// catalogue, details: ErrorInfo with domain "attnserve", BadRequest where a field is wrong,
// RetryInfo where waiting can help.
google::rpc::Status ToRpcStatus(const absl::Status& status);

// Makes `status` at most `limit` bytes long, at least 1,100: without its details but ErrorInfo, and
// with a shorter message. One that fits already is left alone.
void Shorten(size_t limit, google::rpc::Status* status);

// The same for the end of a call: the details are in the trailer grpc-status-details-bin, at most
// kMaxDetailBytes.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_STATUS_H_
