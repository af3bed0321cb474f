#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/check.h"
#include "tests/bench/core_sequences.h"

namespace attnserve::bench {
namespace {

using Sessions = std::vector<client::Session>;

constexpr int64_t kWidth = 2048;                                     // bound by its weights
constexpr int64_t kQueryHeads = 32, kKeyHeads = 8, kHeadSize = 128;  // bound by its caches
constexpr int64_t kChunkTokens = 256;                                // 2 MiB of F32 keys and values
constexpr int64_t kGrowth = 64;  // tokens that may come on top of a context while it is measured

int Rounds(const Bench& bench) { return std::min(3, bench.plan.rounds); }
double PointSeconds(const Bench& bench) { return bench.plan.quick ? 0.02 : 0.6; }

// Adds a point to its chart and a line to the table.
void AddPoint(const Bench& bench, const std::string& chart, const std::string& curve, double x,
              double y, std::string unit, double ceiling) {
  bench.table.AddPoint(chart, curve, x, y);
  Line line;
  line.benchmark = "scale, " + chart;
  line.shape = absl::StrFormat("%s, %.0f", curve, x);
  line.figure = y;
  line.unit = std::move(unit);
  line.ceiling = ceiling;
  line.ratio = y / ceiling;
  bench.table.Add(line);
}

// Tokens a second of sessions that hold `context` tokens, each decoding from a thread of its own.
double CallersPerSecond(Sessions& sessions, const v1::DecodeRequest& step, int64_t context,
                        double seconds) {
  std::atomic<int64_t> tokens{0};
  std::vector<std::thread> callers;
  const double start = Now();
  for (client::Session& session : sessions) {
    callers.emplace_back([&] {
      do {
        if (session.length(0) >= context + kGrowth) Check(session.Truncate(context).status());
        Check(session.Decode(step).status());
        ++tokens;
      } while (Now() - start < seconds);
    });
  }
  for (std::thread& caller : callers) caller.join();
  return static_cast<double>(tokens) / (Now() - start);
}

// The same if one caller decodes them all, in batches.
double BatchesPerSecond(BenchServer& server, Sessions& sessions, double seconds) {
  v1::DecodeBatchRequest request;
  for (size_t i = 0; i < sessions.size(); ++i) *request.add_steps() = server.Step(1);
  double tokens = 0.0;
  const double start = Now();
  do {
    for (size_t i = 0; i < sessions.size(); ++i) {
      if (sessions[i].length(0) >= kGrowth) Check(sessions[i].ResetCache().status());
      v1::DecodeRequest& step = *request.mutable_steps(static_cast<int>(i));
      step.clear_expected_position();
      step.clear_request_id();
      sessions[i].Prepare(&step);
    }
    const auto outcomes = Check(server.client().DecodeBatch(request));
    for (size_t i = 0; i < sessions.size(); ++i) {
      Check(outcomes[i].status());
      sessions[i].Settle(request.steps(static_cast<int>(i)), outcomes[i]);
    }
    tokens += static_cast<double>(sessions.size());
  } while (Now() - start < seconds);
  return tokens / (Now() - start);
}

void ScaleSessions(const Bench& bench) {
  BenchServer server({kWidth, 16}, bench.plan.threads);
  const v1::DecodeRequest step = server.Step(1);
  const double operations = 8.0 * kWidth * kWidth, weight_bytes = 4.0 * 4.0 * kWidth * kWidth;
  Sessions sessions;
  for (int count = 1; count <= (bench.plan.quick ? 4 : 256); count *= 2) {
    while (sessions.size() < static_cast<size_t>(count)) sessions.push_back(server.NewSession());
    std::vector<double> ceilings, callers, batches;
    for (int round = 0; round < Rounds(bench); ++round) {
      ceilings.push_back(std::min(count * bench.ceilings.Bandwidth() / weight_bytes,
                                  bench.ceilings.Peak() / operations));
      callers.push_back(CallersPerSecond(sessions, step, 0, PointSeconds(bench)));
      batches.push_back(BatchesPerSecond(server, sessions, PointSeconds(bench)));
    }
    const double ceiling = Median(ceilings);
    bench.table.AddPoint("sessions", "ceiling: bandwidth, then peak", count, ceiling);
    AddPoint(bench, "sessions", "callers of Decode", count, Median(callers), "tokens/s", ceiling);
    AddPoint(bench, "sessions", "one DecodeBatch", count, Median(batches), "tokens/s", ceiling);
  }
}

v1::CreateSessionRequest CoreSession(v1::DType cache_dtype) {
  v1::CreateSessionRequest request;
  v1::LayerSpec& layer = *request.mutable_core()->add_layers();
  layer.set_kind(v1::LAYER_KIND_CORE_ATTENTION);
  layer.set_head_count(kQueryHeads);
  layer.set_kv_head_count(kKeyHeads);
  layer.set_key_head_size(kHeadSize);
  layer.mutable_attention()->set_causal(true);
  request.set_cache_dtype(cache_dtype);
  return request;
}

v1::DecodeRequest CoreStep(int64_t queries, int64_t tokens) {
  v1::DecodeRequest step;
  step.set_layer(0);
  *step.mutable_q() = client::F32Tensor(RandomFloats(kQueryHeads * queries * kHeadSize, 1),
                                        {1, kQueryHeads, queries, kHeadSize});
  *step.mutable_k() = client::F32Tensor(RandomFloats(kKeyHeads * tokens * kHeadSize, 2),
                                        {1, kKeyHeads, tokens, kHeadSize});
  *step.mutable_v() = step.k();
  return step;
}

// Appends without queries, which costs no attention, until the session holds `tokens`.
void Grow(client::Session& session, int64_t tokens) {
  while (session.length(0) < tokens) {
    const int64_t missing = tokens - session.length(0);
    Check(session.Decode(CoreStep(0, std::min(missing, kChunkTokens))).status());
  }
}

void ScaleContext(const Bench& bench, v1::DType dtype, const std::string& dtype_name) {
  BenchServer server({}, bench.plan.threads);
  const v1::DecodeRequest step = CoreStep(1, 1);
  Sessions one, eight;
  one.push_back(Check(server.client().CreateSession(CoreSession(dtype))));
  for (int i = 0; i < 8; ++i) {
    eight.push_back(Check(server.client().CreateSession(CoreSession(dtype))));
  }
  const double bytes_per_token = static_cast<double>(one[0].created().bytes_per_token());
  const int64_t first = bench.plan.quick ? 256 : 1024, last = bench.plan.quick ? 512 : 65536;
  for (int64_t context = first; context <= last; context *= 2) {
    for (Sessions* sessions : {&one, &eight}) {
      for (client::Session& session : *sessions) {
        Check(session.Truncate(std::min(context, session.length(0))).status());
        Grow(session, context);
      }
    }
    const double context_bytes = static_cast<double>(context) * bytes_per_token;
    std::vector<double> ceilings, ones, eights;
    for (int round = 0; round < Rounds(bench); ++round) {
      ceilings.push_back(bench.ceilings.Bandwidth() / context_bytes);
      ones.push_back(CallersPerSecond(one, step, context, PointSeconds(bench)));
      ceilings.push_back(bench.ceilings.Bandwidth() / context_bytes);
      eights.push_back(CallersPerSecond(eight, step, context, PointSeconds(bench)));
    }
    const double x = static_cast<double>(context), ceiling = Median(ceilings);
    bench.table.AddPoint("context", dtype_name + ", ceiling: bandwidth", x, ceiling);
    AddPoint(bench, "context", dtype_name + ", 1 session", x, Median(ones), "tokens/s", ceiling);
    AddPoint(bench, "context", dtype_name + ", 8 sessions", x, Median(eights), "tokens/s", ceiling);
  }
}

// What one session of `tokens` tokens takes, the last `steps` of them decoded one by one.
struct SessionBytes {
  double resident = 0.0;
  double owned = 0.0;  // as the server counts
  double ideal = 0.0;  // keys and values
};

SessionBytes MeasureSession(const Bench& bench, int64_t tokens, int64_t steps) {
  BenchServer server({}, bench.plan.threads);
  const v1::DecodeRequest step = CoreStep(1, 1);
  const auto fill = [&](int64_t prefilled, int64_t decoded) {
    client::Session session = Check(server.client().CreateSession(CoreSession(v1::DTYPE_F32)));
    Grow(session, prefilled);
    for (int64_t i = 0; i < decoded; ++i) Check(session.Decode(step).status());
    return session;
  };
  // Workspaces and buffers grow; the cache fills whole slabs of 2 MiB.
  const client::Session warm = fill(4 * kChunkTokens - 1, 1);
  const double point_bytes = bench.plan.quick ? 64e6 : 256e6;
  const int count = static_cast<int>(std::clamp(
      point_bytes / static_cast<double>(warm.created().bytes_per_token() * (tokens + kGrowth)), 2.0,
      256.0));
  malloc_trim(0);  // what was freed before must not serve this
  const double before = ResidentBytes();
  Sessions sessions;
  for (int i = 0; i < count; ++i) sessions.push_back(fill(tokens - steps, steps));
  malloc_trim(0);
  SessionBytes bytes;
  bytes.resident = (ResidentBytes() - before) / count;
  bytes.owned = static_cast<double>(Check(sessions[0].GetState()).owned_bytes());
  bytes.ideal = static_cast<double>(tokens * warm.created().bytes_per_token());
  return bytes;
}

void ScaleMemory(const Bench& bench) {
  constexpr int64_t kDecoded = 32;  // as many as replies are kept
  constexpr double kKib = 1024.0;
  for (const int64_t tokens :
       {1, 16, 64, 65, 128, 129, 256, 257, 512, 513, 1024, 4096, 16384, 65536}) {
    if (bench.plan.quick && tokens > 65) break;
    const double x = static_cast<double>(tokens);
    for (const int64_t steps : {int64_t{0}, kDecoded}) {
      if (tokens < steps) continue;
      const SessionBytes bytes = MeasureSession(bench, tokens, steps);
      const std::string curve = steps == 0 ? "resident, prefilled" : "resident, 32 tokens decoded";
      AddPoint(bench, "memory", curve, x, bytes.resident / kKib, "KiB", bytes.owned / kKib);
      if (steps == 0)
        bench.table.AddPoint("memory", "ideal: keys and values", x, bytes.ideal / kKib);
    }
  }
}

}  // namespace

void Scale(const Bench& bench) {
  ScaleSessions(bench);
  ScaleContext(bench, v1::DTYPE_F32, "F32");
  ScaleContext(bench, v1::DTYPE_F16, "F16");
  ScaleContext(bench, v1::DTYPE_I8, "I8");
  ScaleMemory(bench);
}

}  // namespace attnserve::bench
