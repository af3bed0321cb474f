#include "absl/strings/str_format.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/check.h"

namespace attnserve::bench {
namespace {

constexpr int64_t kTokens = 1000;

Line TimesIdeal(std::string what, double bytes, double ideal, double bound) {
  Line line;
  line.benchmark = "memory";
  line.shape = std::move(what);
  line.figure = bytes / (1 << 20);
  line.unit = "MiB";
  line.ceiling = ideal / (1 << 20);
  line.ratio = bytes / ideal;
  return AtMost(bound, line);
}

}  // namespace

void Memory(const Bench& bench) {
  BenchServer server({1024, 8}, bench.plan.threads);
  const v1::DecodeRequest step = server.Step(kTokens);
  const auto fill = [&] {
    client::Session session = server.NewSession();
    Check(session.Decode(step).status());
    return session;
  };
  { const client::Session warm = fill(); }  // workspaces grow, the allocator keeps what it got
  const double before = ResidentBytes();
  std::vector<client::Session> sessions;
  double ideal = 0.0, owned = 0.0;
  for (int i = 0; i < (bench.plan.quick ? 8 : 160); ++i) {
    sessions.push_back(fill());
    ideal += static_cast<double>(kTokens * sessions.back().created().bytes_per_token());
    owned += static_cast<double>(Check(sessions.back().GetState()).owned_bytes());
  }
  const double resident = ResidentBytes() - before;
  const std::string sessions_text =
      absl::StrFormat("%d sessions of %d tokens", sessions.size(), kTokens);
  bench.table.Add(TimesIdeal(sessions_text + ", owned beside ideal", owned, ideal, 1.04));
  bench.table.Add(TimesIdeal(sessions_text + ", resident beside owned", resident, owned, 1.05));
}

}  // namespace attnserve::bench
