// attnctl: the command line of attnserve.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/attnctl/command.h"
#include "client/attnctl/flags.h"

namespace attnserve::ctl {
namespace {

constexpr char kDescription[] =
    "Talks to an attnserve server: shows it, computes with it, tests it.";

constexpr char kFooter[] =
    "Examples:\n"
    "  attnctl models\n"
    "  attnctl generate --model-dir deploy/demo_model\n"
    "  attnctl attend --help\n"
    "\n"
    "Exit codes: 0 done, 1 failed (the message says why), 2 wrong command line,\n"
    "3 no server answered.";

// What a wrong command line gets: one line on what is wrong and where to read on.
std::string Complaint(const CLI::App* app, const CLI::Error& error) {
  const std::vector<CLI::App*> chosen = app->get_subcommands();
  const std::vector<std::string> unknown = app->remaining();
  std::string text = error.what();
  std::string help = "attnctl --help";
  if (!chosen.empty()) {
    help = absl::StrCat("attnctl ", chosen.front()->get_name(), " --help");
  } else if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {
    const auto all = app->get_subcommands([](const CLI::App*) { return true; });
    const auto name = [](std::string* out, const CLI::App* one) { *out += one->get_name(); };
    if (unknown.empty()) {
      text = "the command is missing";
    } else if (absl::StartsWith(unknown.front(), "-")) {
      text = absl::StrCat("there is no option ", unknown.front());
    } else {
      text = absl::StrCat("there is no command \"", unknown.front(), "\"");
    }
    absl::StrAppend(&text, "; commands: ", absl::StrJoin(all, ", ", name));
  }
  return absl::StrCat("attnctl: ", text, " (see ", help, ")\n");
}

int Main(int argc, char** argv) {
  CLI::App app(kDescription, "attnctl");
  app.footer(kFooter);
  app.set_version_flag("--version", "attnctl " ATTNSERVE_VERSION);
  app.failure_message(&Complaint);
  app.require_subcommand(1);
  Global global;
  // Not a check: CLI11 2.4 passes over a variable whose value one refuses.
  const auto set_server = [&global](const std::string& address) {
    const std::string problem = CheckServerAddress(address);
    if (!problem.empty()) throw CLI::ValidationError("--server", problem);
    global.server = address;
  };
  app.add_option_function<std::string>("--server", set_server,
                                       "host:port or unix:/path of the server")
      ->envname("ATTNSERVE_SERVER")
      ->default_str(global.server);
  app.add_flag("--json", global.json, "Print JSON");
  const std::map<std::string, double> units = {{"ms", 1e-3}, {"s", 1.0}, {"m", 60.0}};
  app.add_option("--timeout", global.timeout_seconds,
                 "Deadline of one call, for example 500ms, 30s")
      ->transform(CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::DEFAULT, "TIME"))
      ->check(CLI::Range(1e-3, 86400.0).description(""))
      ->default_str("30s");
  AddModelCommands(&app);
  AddSessionCommands(&app);
  AddAttendCommand(&app);
  AddStepCommands(&app);
  AddGenerateCommand(&app);
  AddVerifyCommand(&app);
  AddBenchCommand(&app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = ChosenCommand()(global);
  if (!status.ok() && !status.message().empty()) PrintError(global, status);
  return ExitCode(status);
}

}  // namespace
}  // namespace attnserve::ctl

int main(int argc, char** argv) {
  try {
    return attnserve::ctl::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attnctl: %s\n", error.what());
    return 1;
  }
}
