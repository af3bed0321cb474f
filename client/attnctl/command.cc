#include "client/attnctl/command.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnserve::ctl {
namespace {

Command& Chosen() {
  static auto& command = *new Command();
  return command;
}

}  // namespace

void SetCommand(CLI::App* app, Command command) {
  app->fallthrough();  // --json and the like may come behind the command's name
  app->callback([command = std::move(command)] { Chosen() = command; });
}

const Command& ChosenCommand() { return Chosen(); }

absl::StatusOr<client::Client> Connect(const Global& global) {
  client::ClientOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(global.timeout_seconds * 1e3));
  return client::Client::Connect(global.server, options);
}

void PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  std::fputs(text.c_str(), stdout);
}

void PrintError(const Global& global, const absl::Status& status) {
  const std::string reason = client::ErrorReason(status);
  std::string line = absl::StrCat("attnctl: ", absl::StatusCodeToString(status.code()),
                                  reason.empty() ? "" : " ", reason, ": ", status.message());
  if (absl::IsUnavailable(status) && reason.empty()) {
    absl::StrAppend(&line, "\n  is a server at ", global.server,
                    "? Start one with \"attnserve\", or name another with --server");
  } else if (absl::IsDeadlineExceeded(status)) {
    absl::StrAppend(&line, "\n  --timeout allows for more time");
  }
  std::fprintf(stderr, "%s\n", line.c_str());
}

bool ShowsProgress() { return isatty(STDERR_FILENO) != 0; }

}  // namespace attnserve::ctl
