#include "server/grpc_log.h"

#include <atomic>
#include <string>

#include "grpc/support/log.h"

namespace attnserve {
namespace {

std::atomic<LogLevel> error_level{LogLevel::kWarning};
std::atomic<bool> has_stopped_listening{false};

void LogLine(gpr_log_func_args* line) {
  const std::string message = line->message;
  const bool error = line->severity == GPR_LOG_SEVERITY_ERROR;
  Log(error ? error_level.load() : LogLevel::kDebug, "grpc", {{"message", message}});
  if (!error || message.find("Failed accept") == std::string::npos) return;
  has_stopped_listening = true;
  Log(LogLevel::kError, "stopped_listening",
      {{"message",
        "no new connection can be made to an address; restart the server, with more file "
        "descriptors (ulimit -n) or fewer clients"}});
}

}  // namespace

void LogGrpc(LogLevel errors) {
  error_level = errors;
  gpr_set_log_function(&LogLine);
}

bool HasStoppedListening() { return has_stopped_listening; }

}  // namespace attnserve
