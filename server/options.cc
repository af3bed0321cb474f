#include "server/options.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <ostream>
#include <string_view>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/network_address.h"

namespace attnserve {
namespace {

constexpr char kDescription[] =
    "Serves attention layers and their key/value caches over gRPC.\n"
    "\n"
    "Without --model it serves the bundled demo model under the name \"demo\". When it is ready "
    "it\n"
    "prints one line on stdout with the addresses it listens on; its log goes to stderr. SIGTERM\n"
    "and SIGINT let running calls finish (see --drain_timeout); a second signal ends it at once.\n";

constexpr char kFooter[] =
    "Examples:\n"
    "  attnserve\n"
    "  attnserve --model llama=/models/llama-3.2-1b --listen 0.0.0.0:50051 --kv_budget_bytes 8GiB\n"
    "  attnserve --listen 127.0.0.1:0 --listen unix:/run/attnserve.sock --http off\n"
    "  ATTNSERVE_MODEL=a=/models/a,b=/models/b attnserve\n"
    "\nExit status: 0 after a signal, 1 if it cannot start or is ended by a second signal, 2 if "
    "the\n"
    "command line is wrong.\n";

// A pebibyte: no machine has it, and sums of a few do not overflow.
constexpr int64_t kMaxKvBudgetBytes = int64_t{1} << 50;

// An error, or "" as CLI11 wants it. Port 0 is a free one.
std::string CheckTcpAddress(const std::string& address) {
  if (IsHostAndPort(address, /*least_port=*/0)) return "";
  return absl::StrCat("\"", address,
                      "\" is not host:port, for example 127.0.0.1:50051 or [::1]:50051");
}

std::string CheckListenAddress(const std::string& address) {
  if (address == "unix:") return "\"unix:\" names no path";
  return IsUnixAddress(address) ? "" : CheckTcpAddress(address);
}

std::string CheckHttpAddress(const std::string& address) {
  return address.empty() || address == "off" ? "" : CheckTcpAddress(address);
}

std::string CheckModelSource(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0 && equals + 1 < text.size()) return "";
  return absl::StrCat("\"", text, "\" is not name=path");
}

// "30s", "10m", "1h30m" is not: one number, one unit.
std::string ParseDuration(const std::string& text, std::chrono::milliseconds* duration) {
  static const std::map<std::string, int64_t> kUnits = {
      {"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}};
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto unit = kUnits.find(text.substr(digits));
  // Ten years in milliseconds: no clock overflows.
  constexpr int64_t kMost = int64_t{3650} * 24 * 3600 * 1000;
  int64_t number = 0;
  if (unit == kUnits.end() || !absl::SimpleAtoi(text.substr(0, digits), &number) || number <= 0 ||
      number > kMost / unit->second) {
    return absl::StrCat("\"", text, "\" is not a duration like 500ms, 30s, 10m or 1h");
  }
  *duration = std::chrono::milliseconds(number * unit->second);
  return "";
}

CLI::Validator DurationTo(std::chrono::milliseconds* target) {
  return CLI::Validator([target](std::string& text) { return ParseDuration(text, target); }, "");
}

// Texts of flags that are parsed further.
struct Texts {
  std::vector<std::string> models;
  std::string session_ttl = "10m";
  std::string step_wait = "2ms";
  std::string drain_timeout = "30s";
  std::string gemm = "auto";
  std::string log_level = "info";
};

// Accepts what `check` returns "" for.
CLI::Validator Checked(std::string (*check)(const std::string&)) {
  return CLI::Validator([check](std::string& text) { return check(text); }, "");
}

void AddNetworkFlags(CLI::App* app, ServerOptions* options) {
  app->add_option("--listen", options->listen,
                  "Where gRPC listens: host:port (port 0: a free one) or unix:/path;\n"
                  "repeat it or separate by commas for several")
      ->envname("ATTNSERVE_LISTEN")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(Checked(&CheckListenAddress))
      ->type_name("ADDRESS")
      ->capture_default_str();
  app->add_option("--http", options->http,
                  "Where HTTP listens, with /metrics, /healthz and /readyz;\n"
                  "\"\" or off: nowhere")
      ->envname("ATTNSERVE_HTTP")
      ->check(Checked(&CheckHttpAddress))
      ->type_name("ADDRESS")
      ->capture_default_str();
  app->add_option("--max_message_bytes", options->max_message_bytes,
                  "Largest request and reply; accepts KiB, MiB, GiB")
      ->envname("ATTNSERVE_MAX_MESSAGE_BYTES")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->type_name("SIZE")
      ->capture_default_str();
}

void AddModelFlags(CLI::App* app, Texts* texts) {
  app->add_option("--model", texts->models,
                  "A model to serve: its name, and the path of a Hugging Face folder or a\n"
                  "model.textproto; repeat it or separate by commas for several")
      ->envname("ATTNSERVE_MODEL")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(Checked(&CheckModelSource))
      ->type_name("NAME=PATH");
  app->add_option("--gemm", texts->gemm,
                  "What multiplies matrices of many rows: oneDNN, our own kernel, or whichever\n"
                  "is faster, measured at load; of equal bits, else our own")
      ->envname("ATTNSERVE_GEMM")
      ->check(CLI::IsMember({"onednn", "native", "auto"}).description(""))
      ->type_name("onednn|native|auto")
      ->capture_default_str();
}

void AddResourceFlags(CLI::App* app, Texts* texts, ServerOptions* options) {
  app->add_option("--threads", options->threads,
                  "Threads that compute; as many as the process may use, if not set")
      ->envname("ATTNSERVE_THREADS")
      ->check(CLI::Range(1, 1024).description(""))
      ->type_name("COUNT")
      ->capture_default_str();
  app->add_option("--kv_budget_bytes", options->kv_budget_bytes,
                  "Memory for key/value caches; accepts KiB, MiB, GiB; 0: half of the memory\n"
                  "limit, less if the weights are large")
      ->envname("ATTNSERVE_KV_BUDGET_BYTES")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->type_name("SIZE")
      ->capture_default_str();
  app->add_option("--step_wait", texts->step_wait,
                  "How long a decode step may wait for prompts and other long calls that run:\n"
                  "shorter makes decoding smoother, longer makes prompts faster")
      ->envname("ATTNSERVE_STEP_WAIT")
      ->check(DurationTo(&options->step_wait))
      ->type_name("DURATION")
      ->capture_default_str();
}

void AddLifeFlags(CLI::App* app, Texts* texts, ServerOptions* options) {
  app->add_option("--session_ttl", texts->session_ttl,
                  "Idle time after which a session expires that asked for nothing else")
      ->envname("ATTNSERVE_SESSION_TTL")
      ->check(DurationTo(&options->session_ttl))
      ->type_name("DURATION")
      ->capture_default_str();
  app->add_option("--drain_timeout", texts->drain_timeout,
                  "Longest time running calls get to finish after SIGTERM")
      ->envname("ATTNSERVE_DRAIN_TIMEOUT")
      ->check(DurationTo(&options->drain_timeout))
      ->type_name("DURATION")
      ->capture_default_str();
  app->add_option("--log_level", texts->log_level,
                  "Least important lines that are logged; debug has a line for every call")
      ->envname("ATTNSERVE_LOG_LEVEL")
      ->check(CLI::IsMember({"error", "warning", "info", "debug"}).description(""))
      ->type_name("error|warning|info|debug")
      ->capture_default_str();
}

// What the parser cannot check by itself; an error or "".
std::string Finish(const Texts& texts, ServerOptions* options) {
  static const std::map<std::string, GemmBackend> kBackends = {{"onednn", GemmBackend::kOneDnn},
                                                               {"native", GemmBackend::kNative},
                                                               {"auto", GemmBackend::kAuto}};
  static const std::map<std::string, LogLevel> kLevels = {{"error", LogLevel::kError},
                                                          {"warning", LogLevel::kWarning},
                                                          {"info", LogLevel::kInfo},
                                                          {"debug", LogLevel::kDebug}};
  options->gemm = kBackends.at(texts.gemm);
  options->log_level = kLevels.at(texts.log_level);
  if (options->http == "off") options->http.clear();
  for (const std::string& text : texts.models) {
    const size_t equals = text.find('=');
    options->models.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  if (options->kv_budget_bytes < 0 || options->kv_budget_bytes > kMaxKvBudgetBytes) {
    return absl::StrCat("--kv_budget_bytes: is ", options->kv_budget_bytes, "; expected 0 to ",
                        kMaxKvBudgetBytes);
  }
  // gRPC counts message bytes in an int.
  if (options->max_message_bytes < kMinMessageBytes || options->max_message_bytes > INT32_MAX) {
    return absl::StrCat("--max_message_bytes: is ", options->max_message_bytes, "; expected ",
                        kMinMessageBytes, " to ", INT32_MAX);
  }
  return "";
}

// The flags that only the environment sets, as arguments. CLI11's own reading of the environment
// checks lists as one value and, from version 2.4, passes over values that its checks refuse.
std::vector<std::string> FromEnvironment(const CLI::App& app,
                                         const std::vector<std::string>& arguments) {
  std::vector<std::string> added;
  for (const CLI::Option* option : app.get_options()) {
    const std::string variable = option->get_envname(), flag = option->get_name();
    const char* const value = variable.empty() ? nullptr : std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') continue;
    const bool given =
        std::any_of(arguments.begin(), arguments.end(), [&flag](const std::string& argument) {
          return argument == flag || absl::StartsWith(argument, flag + "=");
        });
    if (!given) added.push_back(absl::StrCat(flag, "=", value));
  }
  return added;
}

// The first line of what CLI11 says.
std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::optional<int> ParseOptions(int argc, const char* const* argv, ServerOptions* options,
                                std::ostream& out, std::ostream& err) {
  CLI::App app(kDescription, "attnserve");
  app.footer(kFooter);
  app.set_version_flag("--version", "attnserve " ATTNSERVE_VERSION);
  app.get_formatter()->column_width(36);
  Texts texts;
  AddNetworkFlags(&app, options);
  AddModelFlags(&app, &texts);
  AddResourceFlags(&app, &texts, options);
  AddLifeFlags(&app, &texts, options);
  std::string error;
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    const std::vector<std::string> added = FromEnvironment(app, arguments);
    arguments.insert(arguments.begin(), added.begin(), added.end());
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    app.parse(std::move(arguments));
    error = Finish(texts, options);
  } catch (const CLI::Success& success) {
    return app.exit(success, out, err);
  } catch (const CLI::ParseError& parse_error) {
    error = FirstLine(parse_error.what());
  }
  if (error.empty()) return std::nullopt;
  err << "attnserve: " << error << " (see attnserve --help)\n";
  return 2;
}

std::string DemoModelPath() {
  std::error_code ignored;
  const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path installed =
      executable.parent_path().parent_path() / "share/attnserve/demo_model";
  if (std::filesystem::is_directory(installed, ignored)) return installed.string();
  return ATTNSERVE_SOURCE_DEMO_MODEL;
}

}  // namespace attnserve
