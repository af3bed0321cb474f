// attnctl: the command line of attnserve.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>
#include <string>

#include "client/attnctl/command.h"

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

int Main(int argc, char** argv) {
  CLI::App app(kDescription, "attnctl");
  app.footer(kFooter);
  app.set_version_flag("--version", ATTNSERVE_VERSION);
  app.require_subcommand(1);
  Global global;
  app.add_option("--server", global.server, "host:port or unix:/path of the server")
      ->envname("ATTNSERVE_SERVER")
      ->capture_default_str();
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
