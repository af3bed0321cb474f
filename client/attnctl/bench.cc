// bench: a closed loop of callers that decode.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/attnctl/command.h"
#include "client/attnctl/flags.h"
#include "client/attnctl/table.h"
#include "client/attnctl/tensor_input.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"

namespace attnserve::ctl {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Outcome = absl::StatusOr<v1::DecodeResponse>;

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

// Tokens of one message of a prefill, at most: enough rows to keep the products busy.
constexpr int64_t kChunkTokens = 512;
// Bytes of its tensors, at most: few beside the server's default limit of 64 MiB, so that the
// messages of many callers fit into memory.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// What the sessions send: the same inputs in every step.
class Load {
 public:
  // For a model whose layers do not chain, a token is a call to each layer in turn.
  static absl::StatusOr<Load> Make(const BenchFlags& flags, const client::Client& client) {
    Load load(flags);
    ATTNSERVE_ASSIGN_OR_RETURN(const auto server, client.GetServerInfo());
    if (flags.core) {
      load.layers_ = {{0, 0}};
      load.SetChunk((flags.heads + 2 * flags.kv_heads) * flags.head_size, server);
      return load;
    }
    ATTNSERVE_ASSIGN_OR_RETURN(const v1::GetModelResponse served, client.GetModel(flags.model));
    const int count = served.layers_size();
    if (flags.layer >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("--layer: the model has ", Counted(count, "layer")));
    }
    ATTNSERVE_RETURN_IF_ERROR(CheckLength(flags, served.model()));
    int64_t widest = 1;
    for (const v1::LayerSpec& layer : served.layers()) {
      widest = std::max({widest, layer.input_size(), layer.output_size()});
    }
    load.SetChunk(widest, server);
    if (flags.layer >= 0) {
      load.layers_ = {{flags.layer, served.layers(flags.layer).input_size()}};
    } else if (served.model().layers_chain()) {
      load.layers_ = {{-1, served.layers(0).input_size()}};
    } else {
      for (int i = 0; i < count; ++i) load.layers_.push_back({i, served.layers(i).input_size()});
    }
    return load;
  }

  // The calls that append `tokens` tokens.
  std::vector<v1::DecodeRequest> Calls(int64_t tokens) const {
    std::vector<v1::DecodeRequest> calls;
    for (const auto& [layer, width] : layers_) {
      v1::DecodeRequest& step = calls.emplace_back();
      if (layer >= 0) step.set_layer(layer);
      if (flags_.core) {
        *step.mutable_q() = Heads(flags_.heads, tokens);
        *step.mutable_k() = Heads(flags_.kv_heads, tokens);
        *step.mutable_v() = Heads(flags_.kv_heads, tokens);
      } else {
        *step.mutable_x() = RandomTensor(tokens, width, 1);
      }
    }
    return calls;
  }

  // Most tokens that one message of a prefill carries.
  int64_t chunk() const { return chunk_; }

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
  explicit Load(const BenchFlags& flags) : flags_(flags) {}

  static absl::Status CheckLength(const BenchFlags& flags, const v1::Model& model) {
    const int64_t length = flags.prefill + flags.tokens;
    if (model.max_tokens() == 0 || length <= model.max_tokens()) return absl::OkStatus();
    return absl::OutOfRangeError(
        absl::StrCat("--prefill and --tokens make sessions of ", length, " tokens; model \"",
                     model.name(), "\" takes at most ", model.max_tokens(), ": lower one of them"));
  }

  // `elements`: F32 numbers of a token, in the larger of request and reply.
  void SetChunk(int64_t elements, const v1::GetServerInfoResponse& server) {
    const int64_t bytes = std::min(kChunkBytes, server.max_message_bytes() / 2);
    const int64_t token_bytes = elements * static_cast<int64_t>(sizeof(float));
    chunk_ = std::clamp<int64_t>(bytes / token_bytes, 1, kChunkTokens);
  }

  v1::Tensor Heads(int64_t heads, int64_t tokens) const {
    v1::Tensor tensor = RandomTensor(heads * tokens, flags_.head_size, 1);
    tensor.clear_shape();
    for (const int64_t size : {int64_t{1}, heads, tokens, flags_.head_size}) tensor.add_shape(size);
    return tensor;
  }

  BenchFlags flags_;
  int64_t chunk_ = 1;
  std::vector<std::pair<int32_t, int64_t>> layers_;  // layer (-1: all) and width of x
};

// One thread: its sessions in turn, a call at a time; over a stream, a call of each session at a
// time.
class Caller {
 public:
  Caller(const Load& load, const BenchFlags& flags, const client::Client& client)
      : flags_(flags), client_(client), load_(load), calls_(load.Calls(1)) {}

  absl::Status Prepare(int sessions) {
    for (int i = 0; i < sessions; ++i) {
      ATTNSERVE_ASSIGN_OR_RETURN(client::Session session, client_.CreateSession(load_.Session()));
      for (int64_t left = flags_.prefill; left > 0; left -= load_.chunk()) {
        for (v1::DecodeRequest& step : load_.Calls(std::min(left, load_.chunk()))) {
          ATTNSERVE_RETURN_IF_ERROR(session.Decode(std::move(step)).status());
        }
      }
      sessions_.push_back(std::move(session));
    }
    if (flags_.stream) stream_ = client_.OpenStream();
    return absl::OkStatus();
  }

  absl::Status Run(const std::atomic<bool>& stop, std::atomic<int64_t>* done) {
    for (int64_t token = 0; token < flags_.tokens && !stop; ++token) {
      ATTNSERVE_RETURN_IF_ERROR(stream_ != nullptr ? StreamToken(done) : UnaryToken(done));
    }
    return stream_ != nullptr ? stream_->Close() : absl::OkStatus();
  }

  const std::vector<double>& latencies() const { return latencies_; }  // of calls, in seconds

 private:
  absl::Status UnaryToken(std::atomic<int64_t>* done) {
    for (client::Session& session : sessions_) {
      for (const v1::DecodeRequest& call : calls_) {
        const auto start = SteadyClock::now();
        ATTNSERVE_RETURN_IF_ERROR(session.Decode(call).status());
        latencies_.push_back(SecondsSince(start));
      }
      ++*done;
    }
    return absl::OkStatus();
  }

  absl::Status StreamToken(std::atomic<int64_t>* done) {
    struct Pending {
      v1::DecodeRequest step;
      std::promise<Outcome> promise;
      std::future<Outcome> outcome = promise.get_future();
      double seconds = 0.0;
    };
    for (const v1::DecodeRequest& call : calls_) {
      std::vector<Pending> pending(sessions_.size());
      for (size_t i = 0; i < sessions_.size(); ++i) {
        pending[i].step = call;
        sessions_[i].Prepare(&pending[i].step);
        const auto start = SteadyClock::now();
        stream_->Send(pending[i].step, [&slot = pending[i], start](Outcome outcome) {
          slot.seconds = SecondsSince(start);
          slot.promise.set_value(std::move(outcome));
        });
      }
      absl::Status status;
      for (size_t i = 0; i < sessions_.size(); ++i) {
        const Outcome outcome = pending[i].outcome.get();
        sessions_[i].Settle(pending[i].step, outcome);
        if (status.ok()) status = outcome.status();
        latencies_.push_back(pending[i].seconds);
      }
      ATTNSERVE_RETURN_IF_ERROR(status);
    }
    *done += static_cast<int64_t>(sessions_.size());
    return absl::OkStatus();
  }

  const BenchFlags& flags_;
  const client::Client& client_;
  const Load& load_;
  const std::vector<v1::DecodeRequest> calls_;
  std::vector<client::Session> sessions_;
  std::unique_ptr<client::DecodeStream> stream_;
  std::vector<double> latencies_;
};

// Runs `work(i)` on `count` threads and returns the first error; `progress` is called meanwhile.
template <typename Work, typename Progress>
absl::Status OnThreads(int count, Work work, Progress progress) {
  Mutex mutex;
  absl::Status status;
  std::atomic<int> running{count};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      const absl::Status outcome = work(i);
      {
        MutexLock lock(mutex);
        if (status.ok()) status = outcome;
      }
      --running;
    });
  }
  while (running > 0) progress();
  for (std::thread& thread : threads) thread.join();
  return status;
}

struct Result {
  int64_t tokens = 0;
  double seconds = 0.0;
  std::vector<double> latencies;  // of calls, sorted, in seconds

  double Percentile(double p) const {
    const auto index = static_cast<size_t>(p * static_cast<double>(latencies.size()));
    return latencies.empty() ? 0.0 : latencies[std::min(index, latencies.size() - 1)];
  }
};

void Print(const BenchFlags& flags, const Result& result, bool json) {
  const double seconds = std::max(1e-9, result.seconds);
  const double tokens_per_second = static_cast<double>(result.tokens) / seconds;
  const double calls_per_second = static_cast<double>(result.latencies.size()) / seconds;
  const double p50 = 1e3 * result.Percentile(0.5), p90 = 1e3 * result.Percentile(0.9);
  const double p99 = 1e3 * result.Percentile(0.99), max = 1e3 * result.Percentile(1.0);
  if (json) {
    std::printf(
        "{\"callers\": %d, \"sessions\": %d, \"prefill\": %lld, \"stream\": %s, \"tokens\": %lld, "
        "\"calls\": %zu, \"seconds\": %.6f, \"tokens_per_second\": %.1f, \"calls_per_second\": "
        "%.1f, \"latency_ms\": {\"p50\": %.4f, \"p90\": %.4f, \"p99\": %.4f, \"max\": %.4f}}\n",
        flags.callers, flags.sessions, static_cast<long long>(flags.prefill),
        flags.stream ? "true" : "false", static_cast<long long>(result.tokens),
        result.latencies.size(), result.seconds, tokens_per_second, calls_per_second, p50, p90, p99,
        max);
    return;
  }
  std::printf("%s in %.2f s by %s over %s%s\n", Counted(result.tokens, "token").c_str(),
              result.seconds, Counted(flags.callers, "caller").c_str(),
              Counted(flags.sessions, "session").c_str(), flags.stream ? ", streamed" : "");
  std::printf("throughput  %.0f tokens/s, %.0f calls/s\n", tokens_per_second, calls_per_second);
  std::printf("latency     p50 %.3f ms, p90 %.3f ms, p99 %.3f ms, max %.3f ms a call\n", p50, p90,
              p99, max);
}

absl::Status RunBench(const Global& global, const BenchFlags& flags) {
  ATTNSERVE_ASSIGN_OR_RETURN(const client::Client client, Connect(global));
  ATTNSERVE_ASSIGN_OR_RETURN(const Load load, Load::Make(flags, client));
  std::vector<Caller> callers;
  const int count = std::min(flags.callers, flags.sessions);
  for (int i = 0; i < count; ++i) callers.emplace_back(load, flags, client);

  std::atomic<bool> stop{false};
  std::atomic<int64_t> done{0};
  const bool shown = ShowsProgress() && !global.json;
  const int64_t total = int64_t{flags.sessions} * flags.tokens;
  const auto progress = [&] {
    if (shown) {
      std::fprintf(stderr, "\r%lld of %lld tokens ", static_cast<long long>(done.load()),
                   static_cast<long long>(total));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  const auto run = [&](auto work) {
    return OnThreads(
        count,
        [&](int i) {
          absl::Status status = work(i);
          if (!status.ok()) stop = true;
          return status;
        },
        progress);
  };
  absl::Status status = run([&](int i) {
    const int share = flags.sessions / count + (i < flags.sessions % count ? 1 : 0);
    return callers[static_cast<size_t>(i)].Prepare(share);
  });
  std::atomic<int64_t> finished_ns{0};
  const auto start = SteadyClock::now();
  if (status.ok()) {
    status = run([&](int i) {
      absl::Status outcome = callers[static_cast<size_t>(i)].Run(stop, &done);
      const auto now = static_cast<int64_t>(SecondsSince(start) * 1e9);
      int64_t latest = finished_ns;
      while (now > latest && !finished_ns.compare_exchange_weak(latest, now)) {
      }
      return outcome;
    });
  }
  if (shown) std::fprintf(stderr, "\r%40s\r", "");
  ATTNSERVE_RETURN_IF_ERROR(status);

  Result result;
  result.tokens = done;
  result.seconds = static_cast<double>(finished_ns) * 1e-9;
  for (const Caller& caller : callers) {
    result.latencies.insert(result.latencies.end(), caller.latencies().begin(),
                            caller.latencies().end());
  }
  std::sort(result.latencies.begin(), result.latencies.end());
  Print(flags, result, global.json);
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommand(CLI::App* app) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* bench = app->add_subcommand("bench", "Measure decoding: throughput and latency");
  bench->add_option("--callers", flags->callers, "Threads, each waiting for its replies")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  bench->add_option("--sessions", flags->sessions, "Sessions, shared out between the callers")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  bench->add_option("--tokens", flags->tokens, "Steps of one token in each session")
      ->check(Count(1))
      ->capture_default_str();
  bench->add_option("--prefill", flags->prefill, "Tokens each session holds before")
      ->check(Count(0))
      ->capture_default_str();
  CLI::Option* model =
      bench->add_option("--model", flags->model, "Served model; default the only one");
  CLI::Option* layer =
      bench->add_option("--layer", flags->layer, "Layer; default all, in order")->check(Count(0));
  CLI::Option* core = bench
                          ->add_flag("--core", flags->core,
                                     "Core attention instead of a model, with sizes as below")
                          ->excludes(model, layer);
  for (const auto& [name, size, text] :
       {std::tuple<const char*, int64_t*, const char*>("--heads", &flags->heads, "Query heads"),
        {"--kv-heads", &flags->kv_heads, "Key/value heads"},
        {"--head-size", &flags->head_size, "Elements of a head"}}) {
    bench->add_option(name, *size, text)
        ->needs(core)
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
  }
  bench->add_flag("--stream", flags->stream,
                  "Over StreamDecode: each caller has a call of every one of its sessions running");
  bench->footer(
      "Creating and filling the sessions is not measured.\n"
      "Examples:\n"
      "  attnctl bench --callers 4 --sessions 8 --tokens 200\n"
      "  attnctl bench --core --heads 32 --kv-heads 8 --head-size 128 --prefill 4096");
  SetCommand(bench, [flags](const Global& global) { return RunBench(global, *flags); });
}

}  // namespace attnserve::ctl
