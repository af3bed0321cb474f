// One call from its arrival to its status.
#ifndef ATTNSERVE_SERVER_RPC_SCOPE_H_
#define ATTNSERVE_SERVER_RPC_SCOPE_H_

#include <chrono>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "server/metrics.h"

namespace attnserve {

// Counts a call in the metrics and writes its log line (at level debug). Not thread-safe.
class RpcScope {
 public:
  RpcScope(Rpc rpc, ServerMetrics* metrics);
  RpcScope(const RpcScope&) = delete;
  RpcScope& operator=(const RpcScope&) = delete;

  Rpc rpc() const { return rpc_; }

  // Exactly once, before the call finishes.
  void End(const absl::Status& status);

 private:
  const Rpc rpc_;
  ServerMetrics& metrics_;
  const std::chrono::steady_clock::time_point start_;
};

// Writes an error line if `status` is INTERNAL: a defect of ours or of a library.
void LogDefect(Rpc rpc, const absl::Status& status);

// Counts an error that never reached the engine.
void CountRejected(const absl::Status& status, ServerMetrics* metrics);

// The call's deadline on the steady clock.
std::chrono::steady_clock::time_point SteadyDeadline(const grpc::ServerContextBase& context);

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_RPC_SCOPE_H_
