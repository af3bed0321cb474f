#include "server/options.h"

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace attnserve {
namespace {

struct Outcome {
  std::optional<int> exit_code;
  ServerOptions options;
  std::string out;
  std::string err;
};

Outcome Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "attnserve");
  Outcome outcome;
  std::ostringstream out, err;
  outcome.exit_code = ParseOptions(static_cast<int>(arguments.size()), arguments.data(),
                                   &outcome.options, out, err);
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

// An environment variable for one test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Options, NothingGivenGivesDefaults) {
  const Outcome outcome = Parse({});
  EXPECT_FALSE(outcome.exit_code.has_value()) << outcome.err;
  EXPECT_EQ(outcome.options.listen, std::vector<std::string>{"127.0.0.1:50051"});
  EXPECT_EQ(outcome.options.http, "127.0.0.1:9464");
  EXPECT_TRUE(outcome.options.models.empty());
  EXPECT_GE(outcome.options.threads, 1);
  EXPECT_EQ(outcome.options.kv_budget_bytes, 0);
  EXPECT_EQ(outcome.options.max_message_bytes, int64_t{64} << 20);
  EXPECT_EQ(outcome.options.session_ttl, std::chrono::minutes(10));
  EXPECT_EQ(outcome.options.step_wait, std::chrono::milliseconds(2));
  EXPECT_EQ(outcome.options.drain_timeout, std::chrono::seconds(30));
  EXPECT_EQ(outcome.options.gemm, GemmBackend::kAuto);
  EXPECT_EQ(outcome.options.log_level, LogLevel::kInfo);
}

TEST(Options, EveryFlagIsTaken) {
  const Outcome outcome = Parse({"--listen",
                                 "0.0.0.0:1",
                                 "--listen",
                                 "unix:/x/y",
                                 "--listen",
                                 "[::1]:0",
                                 "--http",
                                 "localhost:8080",
                                 "--model",
                                 "a=/m/a",
                                 "--model",
                                 "b=/m=b",
                                 "--threads",
                                 "3",
                                 "--kv_budget_bytes",
                                 "3MiB",
                                 "--max_message_bytes",
                                 "2MiB",
                                 "--session_ttl",
                                 "90s",
                                 "--step_wait",
                                 "7ms",
                                 "--gemm",
                                 "native",
                                 "--log_level",
                                 "debug",
                                 "--drain_timeout",
                                 "1h"});
  ASSERT_FALSE(outcome.exit_code.has_value()) << outcome.err;
  const ServerOptions& options = outcome.options;
  EXPECT_EQ(options.listen, (std::vector<std::string>{"0.0.0.0:1", "unix:/x/y", "[::1]:0"}));
  EXPECT_EQ(options.http, "localhost:8080");
  ASSERT_EQ(options.models.size(), 2u);
  EXPECT_EQ(options.models[0].name, "a");
  EXPECT_EQ(options.models[0].path, "/m/a");
  EXPECT_EQ(options.models[1].path, "/m=b");
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.kv_budget_bytes, int64_t{3} << 20);
  EXPECT_EQ(options.max_message_bytes, int64_t{2} << 20);
  EXPECT_EQ(options.session_ttl, std::chrono::seconds(90));
  EXPECT_EQ(options.step_wait, std::chrono::milliseconds(7));
  EXPECT_EQ(options.gemm, GemmBackend::kNative);
  EXPECT_EQ(options.log_level, LogLevel::kDebug);
  EXPECT_EQ(options.drain_timeout, std::chrono::hours(1));
}

TEST(Options, EnvironmentCountsUnlessAFlagIsGiven) {
  const Environment listen("ATTNSERVE_LISTEN", "127.0.0.1:7,unix:/z");
  const Environment model("ATTNSERVE_MODEL", "a=/m/a,b=/m/b");
  const Environment budget("ATTNSERVE_KV_BUDGET_BYTES", "1GiB");
  const Environment ttl("ATTNSERVE_SESSION_TTL", "5m");
  const Environment http("ATTNSERVE_HTTP", "off");
  const Outcome outcome = Parse({"--session_ttl", "500ms"});
  ASSERT_FALSE(outcome.exit_code.has_value()) << outcome.err;
  EXPECT_EQ(outcome.options.listen, (std::vector<std::string>{"127.0.0.1:7", "unix:/z"}));
  EXPECT_EQ(outcome.options.models.size(), 2u);
  EXPECT_EQ(outcome.options.kv_budget_bytes, int64_t{1} << 30);
  EXPECT_EQ(outcome.options.session_ttl, std::chrono::milliseconds(500));
  EXPECT_EQ(outcome.options.http, "");
}

TEST(Options, EmptyHttpAddressTurnsItOff) {
  const Outcome outcome = Parse({"--http", "", "--threads", "2"});
  ASSERT_FALSE(outcome.exit_code.has_value()) << outcome.err;
  EXPECT_EQ(outcome.options.http, "");
  EXPECT_EQ(outcome.options.threads, 2);
}

TEST(Options, WrongValuesGiveOneLineAndStatusTwo) {
  const std::vector<std::vector<const char*>> wrong = {
      {"--listen", "nonsense"},
      {"--listen", "host:"},
      {"--listen", "host:70000"},
      {"--listen", ":50051"},
      {"--listen", "::1:50051"},
      {"--listen", "unix:"},
      {"--listen", "host:-1"},
      {"--listen", "host:+1"},
      {"--http", "9464"},
      {"--model", "x"},
      {"--model", "=path"},
      {"--model", "name="},
      {"--threads", "0"},
      {"--threads", "-1"},
      {"--threads", "many"},
      {"--threads", "99999999999"},
      {"--kv_budget_bytes", "-5"},
      {"--kv_budget_bytes", "1XB"},
      {"--kv_budget_bytes", "9999999999GiB"},
      {"--max_message_bytes", "1"},
      {"--max_message_bytes", "4GiB"},
      {"--session_ttl", "soon"},
      {"--step_wait", "0ms"},
      {"--session_ttl", "10"},
      {"--session_ttl", "0s"},
      {"--session_ttl", "-1s"},
      {"--session_ttl", "99999999999999999999s"},
      {"--session_ttl", "9999999999h"},
      {"--drain_timeout", "1d"},
      {"--gemm", "mkl"},
      {"--log_level", "loud"},
      {"--no_such_flag"},
      {"stray"},
      {"--threads"},
  };
  for (const auto& arguments : wrong) {
    const std::string all =
        std::string(arguments[0]) + " " + (arguments.size() > 1 ? arguments[1] : "");
    const Outcome outcome = Parse(arguments);
    ASSERT_TRUE(outcome.exit_code.has_value()) << all;
    EXPECT_EQ(*outcome.exit_code, 2) << all;
    EXPECT_EQ(outcome.out, "") << all;
    const std::string flag = arguments[0];
    EXPECT_NE(outcome.err.find(flag.substr(flag.find_first_not_of('-'))), std::string::npos)
        << all << ": " << outcome.err;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << all << ": " << outcome.err;
  }
}

TEST(Options, SizeOutOfRangeIsShownBesideItsRange) {
  const Outcome outcome = Parse({"--kv_budget_bytes", "2PiB"});
  EXPECT_NE(outcome.err.find("is 2251799813685248; expected 0 to 1125899906842624"),
            std::string::npos)
      << outcome.err;
}

TEST(Options, WrongEnvironmentNamesTheFlag) {
  const Environment threads("ATTNSERVE_THREADS", "zero");
  const Outcome outcome = Parse({});
  ASSERT_TRUE(outcome.exit_code.has_value());
  EXPECT_EQ(*outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("--threads"), std::string::npos) << outcome.err;
}

TEST(Options, OneWrongAddressOfAListInTheEnvironmentIsRefused) {
  const Environment listen("ATTNSERVE_LISTEN", "127.0.0.1:7,nonsense");
  const Outcome outcome = Parse({});
  ASSERT_TRUE(outcome.exit_code.has_value());
  EXPECT_NE(outcome.err.find("nonsense"), std::string::npos) << outcome.err;
}

TEST(Options, FlagsComeBeforeTheEnvironmentInEitherForm) {
  const Environment threads("ATTNSERVE_THREADS", "zero");
  EXPECT_EQ(Parse({"--threads=3"}).options.threads, 3);
  EXPECT_EQ(Parse({"--threads", "4"}).options.threads, 4);
}

TEST(Options, HelpNamesEveryFlagAndItsVariable) {
  const Outcome outcome = Parse({"--help"});
  ASSERT_TRUE(outcome.exit_code.has_value());
  EXPECT_EQ(*outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const char* name :
       {"listen", "http", "model", "threads", "kv_budget_bytes", "max_message_bytes", "session_ttl",
        "step_wait", "gemm", "log_level", "drain_timeout"}) {
    EXPECT_NE(outcome.out.find(std::string("--") + name), std::string::npos) << name;
    std::string variable = "ATTNSERVE_";
    for (const char* c = name; *c != 0; ++c) variable += static_cast<char>(std::toupper(*c));
    EXPECT_NE(outcome.out.find(variable), std::string::npos) << variable;
  }
}

TEST(Options, VersionIsPrinted) {
  const Outcome outcome = Parse({"--version"});
  ASSERT_TRUE(outcome.exit_code.has_value());
  EXPECT_EQ(*outcome.exit_code, 0);
  EXPECT_EQ(outcome.out.compare(0, 10, "attnserve "), 0) << outcome.out;
}

}  // namespace
}  // namespace attnserve
