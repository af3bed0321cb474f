// What the client, its sessions and streams share.
#ifndef ATTNSERVE_CLIENT_SRC_CONNECTION_H_
#define ATTNSERVE_CLIENT_SRC_CONNECTION_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnserve/client/options.h"
#include "attnserve/client/status.h"
#include "attnserve/v1/attention_service.grpc.pb.h"
#include "attnserve/v1/model_service.grpc.pb.h"
#include "attnserve/v1/session_service.grpc.pb.h"
#include "client/src/retry.h"

namespace attnserve::client::internal {

// A channel with its stubs. Thread-safe: nothing changes after construction.
struct Connection {
  Connection(std::shared_ptr<::grpc::Channel> channel, const ClientOptions& options);

  // Makes one unary call: method(stub, context, request, response), with deadline and repetition.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(
      Stub& stub, ::grpc::Status (Stub::*method)(::grpc::ClientContext*, const Request&, Response*),
      const Request& request, const CallOptions& call, Repeat repeat) const {
    Response response;
    const auto timeout = call.timeout.count() > 0 ? call.timeout : options.timeout;
    absl::Status status = RunWithRetries(
        options.retry, std::chrono::system_clock::now() + timeout, repeat, [&](TimePoint deadline) {
          ::grpc::ClientContext context;
          context.set_deadline(deadline);
          return FromGrpcStatus((stub.*method)(&context, request, &response));
        });
    if (!status.ok()) return status;
    return response;
  }

  const std::shared_ptr<::grpc::Channel> channel;
  const ClientOptions options;
  const std::unique_ptr<v1::AttentionService::Stub> attention;
  const std::unique_ptr<v1::SessionService::Stub> sessions;
  const std::unique_ptr<v1::ModelService::Stub> models;
};

// `count` random hexadecimal digits, from the system's entropy.
std::string RandomHex(int count);

}  // namespace attnserve::client::internal

#endif  // ATTNSERVE_CLIENT_SRC_CONNECTION_H_
