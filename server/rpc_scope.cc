#include "server/rpc_scope.h"

#include <string>

#include "lib/base/errors.h"
#include "server/log.h"

namespace attnserve {

RpcScope::RpcScope(Rpc rpc, ServerMetrics* metrics)
    : rpc_(rpc), metrics_(*metrics), start_(std::chrono::steady_clock::now()) {
  metrics_.OnRpcStarted(rpc_);
}

void RpcScope::End(const absl::Status& status) {
  const auto duration = std::chrono::steady_clock::now() - start_;
  metrics_.OnRpcEnded(rpc_, static_cast<grpc::StatusCode>(status.code()), duration);
  LogDefect(rpc_, status);
  if (LogEnabled(LogLevel::kDebug)) {
    Log(LogLevel::kDebug, "rpc",
        {{"method", kRpcNames[static_cast<size_t>(rpc_)]},
         {"code", absl::StatusCodeToString(status.code())},
         {"seconds", std::chrono::duration<double>(duration).count()},
         {"message", status.message()}});
  }
}

void LogDefect(Rpc rpc, const absl::Status& status) {
  if (!absl::IsInternal(status)) return;
  Log(LogLevel::kError, "defect",
      {{"method", kRpcNames[static_cast<size_t>(rpc)]}, {"message", status.message()}});
}

void CountRejected(const absl::Status& status, ServerMetrics* metrics) {
  if (const auto detail = GetErrorDetail(status)) metrics->OnRejected(detail->reason);
}

std::chrono::steady_clock::time_point SteadyDeadline(const grpc::ServerContextBase& context) {
  // Beyond this a deadline is none, and no sum below overflows.
  constexpr std::chrono::hours kFar{24 * 365};
  const auto left = context.deadline() - std::chrono::system_clock::now();
  if (context.deadline() == std::chrono::system_clock::time_point::max() || left > kFar) {
    return std::chrono::steady_clock::time_point::max();
  }
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(left);
}

}  // namespace attnserve
