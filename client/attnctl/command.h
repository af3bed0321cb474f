// What the commands of attnctl share: where the server is, how answers and errors are shown.
#ifndef ATTNSERVE_CLIENT_ATTNCTL_COMMAND_H_
#define ATTNSERVE_CLIENT_ATTNCTL_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnserve/client/client.h"

namespace google::protobuf {
class Message;
}

namespace attnserve::ctl {

namespace v1 = attnserve::v1;

// Options that every command takes.
struct Global {
  std::string server = "127.0.0.1:50051";
  bool json = false;
  double timeout_seconds = 30.0;
};

// Result of a command: OK, or what to tell the user. kFailed without a message means that the
// command itself has said what failed.
using Command = std::function<absl::Status(const Global&)>;

// Makes `command` what runs when `app` was chosen on the command line. To be called last: it adds
// to the help what every command takes.
void SetCommand(CLI::App* app, Command command);

// The command chosen; null if none was.
const Command& ChosenCommand();

// A connection to global.server; the error says how to start one.
absl::StatusOr<client::Client> Connect(const Global& global);

// Prints a message as JSON, fields named as in the protos' JSON mapping, defaults included, tensors
// as `values` (without `data`).
void PrintJson(const google::protobuf::Message& message);

// `text` as a JSON string, quotes included; bytes that are no UTF-8 become U+FFFD.
std::string JsonString(const std::string& text);

// On stderr: code, reason and message, and what to do about it where we know; with --json an object
// {"code", "reason", "message", "metadata"}.
void PrintError(const Global& global, const absl::Status& status);

// Exit codes: 1 failed, 3 no server answered. (2, a wrong command line, never gets that far.)
int ExitCode(const absl::Status& status);

// Whether stderr is a terminal: progress is only shown there.
bool ShowsProgress();

// Each adds its subcommands.
void AddModelCommands(CLI::App* app);
void AddSessionCommands(CLI::App* app);
void AddAttendCommand(CLI::App* app);
void AddStepCommands(CLI::App* app);
void AddGenerateCommand(CLI::App* app);
void AddVerifyCommand(CLI::App* app);
void AddBenchCommand(CLI::App* app);

}  // namespace attnserve::ctl

#endif  // ATTNSERVE_CLIENT_ATTNCTL_COMMAND_H_
