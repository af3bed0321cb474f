#include <functional>
#include <thread>

#include "absl/strings/str_format.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/check.h"
#include "tests/bench/core_sequences.h"

namespace attnserve::bench {
namespace {

constexpr int64_t kWidth = 2048, kHeads = 16;
constexpr int kSessions = 32;

// Tokens a second of `count` sessions, each decoding `tokens` tokens from a thread of its own.
double TokensPerSecond(BenchServer& server, int count, int tokens) {
  std::vector<client::Session> sessions;
  for (int i = 0; i < count; ++i) sessions.push_back(server.NewSession());
  const v1::DecodeRequest step = server.Step(1);
  for (client::Session& session : sessions) Check(session.Decode(step).status());
  const double seconds = TimeOf([&] {
    std::vector<std::thread> callers;
    for (client::Session& session : sessions) {
      callers.emplace_back([&session, &step, tokens] {
        for (int i = 0; i < tokens; ++i) Check(session.Decode(step).status());
      });
    }
    for (std::thread& caller : callers) caller.join();
  });
  return count * tokens / seconds;
}

// One step of 32 sequences of the same layer, in process.
class InProcess {
 public:
  InProcess(int threads) : workers_(threads), pool_(int64_t{8} << 30) {
    LayerSpec spec;
    spec.input_size = kWidth;
    spec.head_count = kHeads;
    spec.output_projection = true;
    spec.attention.causal = true;
    spec.attention.position = RotaryPosition();
    Check(CompleteLayerSpec("layer", &spec));
    const std::vector<float> matrix = RandomFloats(kWidth * kWidth, 1);
    const WeightView view = {DType::kF32, matrix.data(), kWidth, kWidth, kWidth, 1};
    LayerWeights weights;
    weights.query = weights.key = weights.value = weights.output = view;
    layer_ = Check(AttentionLayer::Create(spec, weights, GemmBackend::kAuto));
    x_ = RandomFloats(kSessions * kWidth, 2);
    y_.resize(x_.size());
    for (int i = 0; i < kSessions; ++i) {
      caches_.push_back(std::make_unique<KvSequence>(layer_->kv_layout(), &pool_));
    }
  }

  void Step() {
    std::vector<LayerPass> passes(kSessions);
    std::vector<PassRows> rows;
    for (size_t i = 0; i < passes.size(); ++i) {
      LayerPass& pass = passes[i];
      KvSequence& cache = *caches_[i];
      pass.cache = &cache;
      pass.x = {DType::kF32, &x_[i * kWidth], 1, kWidth};
      pass.past_tokens = pass.query_position_base = pass.key_position_base = cache.length();
      pass.masks.causal_offset = cache.length();
      pass.output = {DType::kF32, &y_[i * kWidth], kWidth, 0};
      Check(cache.Reserve(cache.length() + 1));
      cache.Extend(1, nullptr);
      rows.push_back({&pass, 0, 1});
    }
    Check(layer_->AppendKeys(rows, workers_, workspace_));
    Check(layer_->Attend(rows, workers_, workspace_));
  }

 private:
  WorkerPool workers_;
  KvBlockPool pool_;
  std::unique_ptr<AttentionLayer> layer_;
  LayerWorkspace workspace_;
  std::vector<std::unique_ptr<KvSequence>> caches_;
  std::vector<float> x_, y_;
};

Line BatchBesideInProcess(const Bench& bench, BenchServer& server) {
  InProcess in_process(bench.plan.threads);
  std::vector<client::Session> sessions;
  for (int i = 0; i < kSessions; ++i) sessions.push_back(server.NewSession());
  const auto batch = [&] {
    v1::DecodeBatchRequest request;
    for (client::Session& session : sessions) {
      *request.add_steps() = server.Step(1);
      session.Prepare(request.mutable_steps(request.steps_size() - 1));
    }
    const double start = Now();
    const auto outcomes = Check(server.client().DecodeBatch(request));
    const double seconds = Now() - start;
    for (size_t i = 0; i < sessions.size(); ++i) {
      Check(outcomes[i].status());
      sessions[i].Settle(request.steps(static_cast<int>(i)), outcomes[i]);
    }
    return seconds;
  };
  const int steps = bench.plan.quick ? 3 : 20;
  batch();
  in_process.Step();
  const auto median_of = [steps](const std::function<double()>& measure) {
    std::vector<double> seconds;
    for (int i = 0; i < steps; ++i) seconds.push_back(measure());
    return Median(std::move(seconds));
  };
  const Comparison comparison = Compare(
      bench.plan.rounds,
      [&] { return median_of([&] { return TimeOf([&] { in_process.Step(); }); }); },
      [&] { return median_of(batch); });
  return AtMost(1.2, LineOf(comparison, 1e3, "ms", "sessions",
                            absl::StrFormat("DecodeBatch of %d, d=%d, beside in-process", kSessions,
                                            kWidth)));
}

}  // namespace

void ManySessions(const Bench& bench) {
  BenchServer server({kWidth, kHeads}, bench.plan.threads);
  const int tokens = bench.plan.quick ? 3 : 40;
  const Comparison comparison = Compare(
      bench.plan.rounds, [&] { return TokensPerSecond(server, 1, 2 * tokens); },
      [&] { return TokensPerSecond(server, kSessions, tokens); });
  bench.table.Add(
      AtLeast(5.0, LineOf(comparison, 1.0, "tokens/s", "sessions",
                          absl::StrFormat("%d at once beside one, d=%d", kSessions, kWidth))));
  bench.table.Add(BatchBesideInProcess(bench, server));
}

}  // namespace attnserve::bench
