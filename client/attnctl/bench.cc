// bench: a closed loop of callers that decode.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/attnctl/command.h"
#include "client/attnctl/table.h"
#include "client/attnctl/tensor_input.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"

namespace attnserve::ctl {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct BenchFlags {
  std::string model;
  int callers = 1;
  int sessions = 1;
  int64_t tokens = 100;
  int64_t prefill = 0;
  int32_t layer = -1;
  int64_t heads = 8, kv_heads = 8, head_size = 64;
  bool core = false;
  bool stream = false;
};

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// One session's inputs, the same for every step.
class Load {
 public:
  Load(const BenchFlags& flags, int64_t width) : flags_(flags), width_(width) {}

  v1::DecodeRequest Step(int64_t tokens) const {
    v1::DecodeRequest step;
    if (flags_.core) {
      step.set_layer(0);
      const auto fill = [&](int64_t heads, v1::Tensor* tensor) {
        *tensor = RandomTensor(heads * tokens, flags_.head_size, 1);
        tensor->clear_shape();
        for (const int64_t size : {int64_t{1}, heads, tokens, flags_.head_size}) {
          tensor->add_shape(size);
        }
      };
      fill(flags_.heads, step.mutable_q());
      fill(flags_.kv_heads, step.mutable_k());
      fill(flags_.kv_heads, step.mutable_v());
      return step;
    }
    if (flags_.layer >= 0) step.set_layer(flags_.layer);
    *step.mutable_x() = RandomTensor(tokens, width_, 1);
    return step;
  }

  v1::CreateSessionRequest Session() const {
    v1::CreateSessionRequest request;
    if (!flags_.core) {
      request.set_model(flags_.model);
      return request;
    }
    v1::LayerSpec& layer = *request.mutable_core()->add_layers();
    layer.set_kind(v1::LAYER_KIND_CORE_ATTENTION);
    layer.set_head_count(flags_.heads);
    layer.set_kv_head_count(flags_.kv_heads);
    layer.set_key_head_size(flags_.head_size);
    layer.mutable_attention()->set_causal(true);
    return request;
  }

 private:
  const BenchFlags& flags_;
  int64_t width_;
};

// What all callers share.
class Bench {
 public:
  Bench(const BenchFlags& flags, const client::Client& client, const Load& load)
      : flags_(flags), client_(client), load_(load) {}

  absl::Status Run(bool progress) {
    std::vector<std::thread> callers;
    for (int caller = 0; caller < flags_.callers; ++caller) {
      callers.emplace_back([this, caller] {
        const absl::Status status = Call(caller);
        MutexLock lock(mutex_);
        if (!status.ok() && status_.ok()) status_ = status;
        ++ended_;
      });
    }
    while (progress && !Ended()) {
      std::fprintf(stderr, "\r%lld of %lld tokens", static_cast<long long>(done_.load()),
                   static_cast<long long>(flags_.sessions * flags_.tokens));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    for (std::thread& caller : callers) caller.join();
    if (progress) std::fprintf(stderr, "\r%40s\r", "");
    MutexLock lock(mutex_);
    return status_;
  }

  void Print(bool json) {
    MutexLock lock(mutex_);
    std::sort(latencies_.begin(), latencies_.end());
    const auto percentile = [this](double p) {
      const size_t index = static_cast<size_t>(p * static_cast<double>(latencies_.size()));
      return 1e3 * latencies_[std::min(index, latencies_.size() - 1)];
    };
    if (latencies_.empty()) return;
    const double seconds = std::chrono::duration<double>(last_ - first_).count();
    const double rate = static_cast<double>(latencies_.size()) / std::max(1e-9, seconds);
    const double p[4] = {percentile(0.5), percentile(0.9), percentile(0.99),
                         1e3 * latencies_.back()};
    if (json) {
      std::printf(
          "{\"callers\": %d, \"sessions\": %d, \"tokens\": %lld, \"seconds\": %.6f, "
          "\"tokens_per_second\": %.1f, \"latency_ms\": {\"p50\": %.4f, \"p90\": %.4f, "
          "\"p99\": %.4f, \"max\": %.4f}}\n",
          flags_.callers, flags_.sessions, static_cast<long long>(latencies_.size()), seconds, rate,
          p[0], p[1], p[2], p[3]);
      return;
    }
    std::printf("%lld tokens in %.2f s by %d callers over %d sessions: %.0f tokens/s\n",
                static_cast<long long>(latencies_.size()), seconds, flags_.callers, flags_.sessions,
                rate);
    std::printf("latency of a step: p50 %.3f ms, p90 %.3f ms, p99 %.3f ms, max %.3f ms\n", p[0],
                p[1], p[2], p[3]);
  }

 private:
  bool Ended() {
    MutexLock lock(mutex_);
    return ended_ == flags_.callers;
  }

  // The sessions caller, caller + callers, ... in turn, a token each.
  absl::Status Call(int caller) {
    std::vector<client::Session> sessions;
    for (int i = caller; i < flags_.sessions; i += flags_.callers) {
      ATTNSERVE_ASSIGN_OR_RETURN(client::Session session, client_.CreateSession(load_.Session()));
      if (flags_.prefill > 0) {
        ATTNSERVE_RETURN_IF_ERROR(session.Decode(load_.Step(flags_.prefill)).status());
      }
      sessions.push_back(std::move(session));
    }
    std::unique_ptr<client::DecodeStream> stream;
    if (flags_.stream) stream = client_.OpenStream();
    const v1::DecodeRequest step = load_.Step(1);
    std::vector<double> latencies;
    const auto begin = SteadyClock::now();
    for (int64_t token = 0; token < flags_.tokens; ++token) {
      for (client::Session& session : sessions) {
        const auto start = SteadyClock::now();
        ATTNSERVE_RETURN_IF_ERROR(DecodeOne(step, stream.get(), &session));
        latencies.push_back(SecondsSince(start));
        ++done_;
      }
    }
    const auto end = SteadyClock::now();
    if (stream != nullptr) ATTNSERVE_RETURN_IF_ERROR(stream->Close());
    MutexLock lock(mutex_);
    first_ = latencies_.empty() ? begin : std::min(first_, begin);
    last_ = std::max(last_, end);
    latencies_.insert(latencies_.end(), latencies.begin(), latencies.end());
    return absl::OkStatus();
  }

  static absl::Status DecodeOne(const v1::DecodeRequest& step, client::DecodeStream* stream,
                                client::Session* session) {
    v1::DecodeRequest copy = step;
    if (stream == nullptr) return session->Decode(std::move(copy)).status();
    session->Prepare(&copy);
    const auto outcome = stream->Send(copy).get();
    session->Settle(copy, outcome);
    return outcome.status();
  }

  const BenchFlags& flags_;
  const client::Client& client_;
  const Load& load_;
  std::atomic<int64_t> done_{0};
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int ended_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<double> latencies_ ABSL_GUARDED_BY(mutex_);
  SteadyClock::time_point first_ ABSL_GUARDED_BY(mutex_);
  SteadyClock::time_point last_ ABSL_GUARDED_BY(mutex_);
};

absl::Status RunBench(const Global& global, const BenchFlags& flags) {
  ATTNSERVE_ASSIGN_OR_RETURN(const client::Client client, Connect(global));
  int64_t width = 0;
  if (!flags.core) {
    ATTNSERVE_ASSIGN_OR_RETURN(const v1::GetModelResponse model, client.GetModel(flags.model));
    const int layer = std::max(0, flags.layer);
    if (layer >= model.layers_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--layer: the model has ", model.layers_size(), " layers"));
    }
    width = model.layers(layer).input_size();
  }
  const Load load(flags, width);
  Bench bench(flags, client, load);
  ATTNSERVE_RETURN_IF_ERROR(bench.Run(ShowsProgress() && !global.json));
  bench.Print(global.json);
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommand(CLI::App* app) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* bench = app->add_subcommand("bench", "Measure decoding: throughput and latency");
  bench->add_option("--callers", flags->callers, "Threads, each waiting for its reply")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  bench->add_option("--sessions", flags->sessions, "Sessions, shared out between the callers")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  bench->add_option("--tokens", flags->tokens, "Steps of one token in each session")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  bench->add_option("--prefill", flags->prefill, "Tokens each session holds before")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  bench->add_option("--model", flags->model, "Served model; default the only one");
  bench->add_option("--layer", flags->layer, "Layer; default all, in order")
      ->check(CLI::NonNegativeNumber);
  bench->add_flag("--core", flags->core, "Core attention instead of a model, with sizes as below");
  bench->add_option("--heads", flags->heads, "Query heads")->capture_default_str();
  bench->add_option("--kv-heads", flags->kv_heads, "Key/value heads")->capture_default_str();
  bench->add_option("--head-size", flags->head_size, "Elements of a head")->capture_default_str();
  bench->add_flag("--stream", flags->stream, "Over StreamDecode instead of unary calls");
  bench->footer(
      "Examples:\n"
      "  attnctl bench --callers 4 --sessions 8 --tokens 200\n"
      "  attnctl bench --core --heads 32 --kv-heads 8 --head-size 128 --prefill 4096");
  SetCommand(bench, [flags](const Global& global) { return RunBench(global, *flags); });
}

}  // namespace attnserve::ctl
