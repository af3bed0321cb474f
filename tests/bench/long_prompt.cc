#include <atomic>
#include <mutex>
#include <thread>

#include "absl/strings/str_format.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/check.h"

namespace attnserve::bench {
namespace {

constexpr int kSessions = 8;
// Tokens a session holds: it goes back to the first number when it has come to the second, or a
// longer measurement would be one of longer contexts.
constexpr int64_t kContext = 512;
constexpr int64_t kMostContext = 640;

// Times between the replies that the sessions see while `meanwhile` runs.
std::vector<double> Gaps(BenchServer& server, const std::function<void()>& meanwhile) {
  std::vector<client::Session> sessions;
  for (int i = 0; i < kSessions; ++i) sessions.push_back(server.NewSession());
  const v1::DecodeRequest step = server.Step(1);
  const v1::DecodeRequest context = server.Step(kContext);
  for (client::Session& session : sessions) Check(session.Decode(context).status());
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::vector<double> gaps;
  std::vector<std::thread> callers;
  for (client::Session& session : sessions) {
    callers.emplace_back([&] {
      std::vector<double> own;
      for (double last = Now(); !stop;) {
        const int64_t length = Check(session.Decode(step)).length();
        const double now = Now();
        own.push_back(now - last);
        last = now;
        if (length < kMostContext) continue;
        Check(session.Truncate(kContext).status());
        last = Now();
      }
      const std::lock_guard<std::mutex> lock(mutex);
      gaps.insert(gaps.end(), own.begin(), own.end());
    });
  }
  meanwhile();
  stop = true;
  for (std::thread& caller : callers) caller.join();
  return gaps;
}

}  // namespace

void LongPrompt(const Bench& bench) {
  const int64_t tokens = bench.plan.quick ? 1024 : 16384;
  BenchServer server({1024, 16}, bench.plan.threads);
  const v1::DecodeRequest prompt = server.Step(tokens);
  double prompt_seconds = 0.0;
  const auto send_prompt = [&] {
    client::Session session = server.NewSession();
    prompt_seconds =
        TimeOf([&] { Check(session.Decode(prompt, {std::chrono::minutes(2)}).status()); });
  };
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::seconds(1)); };
  const Comparison comparison = Compare(
      std::min(3, bench.plan.rounds), [&] { return Quantile(Gaps(server, wait), 0.99); },
      [&] { return Quantile(Gaps(server, send_prompt), 0.99); });
  bench.table.Add(AtMost(2.0, LineOf(comparison, 1e3, "ms p99", "long prompt",
                                     absl::StrFormat("%d tokens (%.1f s) beside 8 sessions, d=1024",
                                                     tokens, prompt_seconds))));
}

}  // namespace attnserve::bench
