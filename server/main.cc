// The executable attnserve; see options.h for its command line.
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/grpc_log.h"
#include "server/log.h"
#include "server/options.h"
#include "server/server.h"
#include "server/signals.h"

namespace {

using attnserve::LogLevel;

// Each connection takes a file descriptor: all that the system grants.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int Fail(const absl::Status& status) {
  attnserve::Log(LogLevel::kError, "cannot_start", {{"message", status.message()}});
  return 1;
}

void PrintReady(const attnserve::Server& server) {
  std::string line = "attnserve ready: grpc";
  for (const std::string& address : server.grpc_addresses()) absl::StrAppend(&line, " ", address);
  if (!server.http_address().empty()) absl::StrAppend(&line, " http ", server.http_address());
  std::puts(line.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  attnserve::ServerOptions options;
  if (const auto code = attnserve::ParseOptions(argc, argv, &options, std::cout, std::cerr)) {
    return *code;
  }
  attnserve::SetLogLevel(options.log_level);
  // What gRPC cannot do at the start shows in Start's status, in fewer words.
  attnserve::LogGrpc(LogLevel::kDebug);
  std::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  // Never destroyed: its thread waits for signals until the process ends.
  static auto* const signals = new attnserve::Signals;
  auto server = attnserve::Server::Start(options);
  if (!server.ok()) return Fail(server.status());
  attnserve::LogGrpc(LogLevel::kWarning);
  if (const absl::Status status = (*server)->Load(); !status.ok()) return Fail(status);
  PrintReady(**server);
  signals->Wait();
  (*server)->Drain();
  return 0;
}
