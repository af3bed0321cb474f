#include "server/metrics.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "prometheus/text_serializer.h"
#include "server/engine_gauges.h"

namespace attnserve {
namespace {

using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

// From the cost of an empty call to that of a long prompt; factors of about 2.5.
const Buckets kSecondsBuckets = {0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                 0.1,     0.25,   0.5,   1,      2.5,   5,    10,    30};
const Buckets kCountBuckets = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};

double Seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry,
                                                       const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

prometheus::Family<prometheus::Gauge>& GaugeFamily(prometheus::Registry& registry, const char* name,
                                                   const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

prometheus::Family<Histogram>& HistogramFamily(prometheus::Registry& registry, const char* name,
                                               const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

const char* CodeName(size_t code) {
  static constexpr const char* kNames[] = {
      "OK",
      "CANCELLED",
      "UNKNOWN",
      "INVALID_ARGUMENT",
      "DEADLINE_EXCEEDED",
      "NOT_FOUND",
      "ALREADY_EXISTS",
      "PERMISSION_DENIED",
      "RESOURCE_EXHAUSTED",
      "FAILED_PRECONDITION",
      "ABORTED",
      "OUT_OF_RANGE",
      "UNIMPLEMENTED",
      "INTERNAL",
      "UNAVAILABLE",
      "DATA_LOSS",
      "UNAUTHENTICATED",
  };
  return kNames[code];
}

}  // namespace

ServerMetrics::ServerMetrics()
    : rpc_count_(CounterFamily(registry_, "attnserve_rpc_requests_total",
                               "Calls that ended, by method and status code")),
      rpc_duration_(HistogramFamily(registry_, "attnserve_rpc_duration_seconds",
                                    "Time from a call's arrival to its status; of a stream, its "
                                    "whole life")),
      ended_(CounterFamily(registry_, "attnserve_sessions_ended_total",
                           "Sessions that ended, by reason")),
      cancelled_(CounterFamily(registry_, "attnserve_calls_cancelled_total",
                               "Calls dropped because their caller gave up, by reason")),
      rejected_(CounterFamily(registry_, "attnserve_calls_rejected_total",
                              "Calls that failed, by reason of the error")),
      build_info_(GaugeFamily(registry_, "attnserve_build_info", "1, with facts as labels")),
      weight_bytes_(GaugeFamily(registry_, "attnserve_model_weight_bytes",
                                "Memory of a model's packed weights")) {
  auto& in_flight = GaugeFamily(registry_, "attnserve_rpc_in_flight", "Calls that have not ended");
  for (size_t i = 0; i < kRpcCount; ++i) {
    rpcs_[i].in_flight = &in_flight.Add({{"method", kRpcNames[i]}});
  }
  auto& queue_wait =
      HistogramFamily(registry_, "attnserve_queue_wait_seconds",
                      "Time a call waited for its turn; of decode steps, what --step_wait bounds");
  auto& batch_calls =
      HistogramFamily(registry_, "attnserve_batch_calls", "Calls that ran together");
  auto& batch_rows =
      HistogramFamily(registry_, "attnserve_batch_rows", "Token rows that ran together");
  auto& compute = HistogramFamily(registry_, "attnserve_compute_seconds", "Time a batch computed");
  auto& tokens =
      CounterFamily(registry_, "attnserve_tokens_total", "Tokens of calls that succeeded");
  for (size_t i = 0; i < kPhaseCount; ++i) {
    const std::string name(PhaseName(static_cast<Phase>(i)));
    const prometheus::Labels labels{{"phase", name}};
    phases_[i] = {&queue_wait.Add(labels, kSecondsBuckets), &batch_calls.Add(labels, kCountBuckets),
                  &batch_rows.Add(labels, kCountBuckets), &compute.Add(labels, kSecondsBuckets),
                  &tokens.Add(labels)};
  }
  masked_rows_ = &CounterFamily(registry_, "attnserve_masked_rows_total",
                                "Query rows (per head) that had nothing to attend")
                      .Add({});
  nonfinite_values_ = &CounterFamily(registry_, "attnserve_nonfinite_values_total",
                                     "Output elements that were NaN or infinite")
                           .Add({});
  sessions_created_ =
      &CounterFamily(registry_, "attnserve_sessions_created_total", "Sessions created").Add({});
  sessions_ended_ = {&ended_.Add({{"reason", "deleted"}}), &ended_.Add({{"reason", "expired"}})};
  for (const char* reason : {"cancelled", "deadline"}) cancelled_.Add({{"reason", reason}});
  GaugeFamily(registry_, "process_start_time_seconds", "Start of the process, Unix time")
      .Add({})
      .SetToCurrentTime();
}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::OnRpcStarted(Rpc rpc) {
  rpcs_started_.fetch_add(1, std::memory_order_relaxed);
  rpcs_[static_cast<size_t>(rpc)].in_flight->Increment();
}

void ServerMetrics::OnRpcEnded(Rpc rpc, grpc::StatusCode code, std::chrono::nanoseconds duration) {
  RpcMetrics& metrics = rpcs_[static_cast<size_t>(rpc)];
  const size_t index =
      std::min(static_cast<size_t>(std::max(static_cast<int>(code), 0)), kCodeCount - 1);
  if (metrics.count[index].load(std::memory_order_acquire) == nullptr) {
    const prometheus::Labels labels{{"method", kRpcNames[static_cast<size_t>(rpc)]},
                                    {"code", CodeName(index)}};
    metrics.duration[index].store(&rpc_duration_.Add(labels, kSecondsBuckets),
                                  std::memory_order_release);
    metrics.count[index].store(&rpc_count_.Add(labels), std::memory_order_release);
  }
  metrics.in_flight->Decrement();
  metrics.count[index].load(std::memory_order_acquire)->Increment();
  metrics.duration[index].load(std::memory_order_acquire)->Observe(Seconds(duration));
}

void ServerMetrics::SetBuildInfo(const BuildInfo& info) {
  build_info_
      .Add({{"version", info.version},
            {"onednn", info.onednn_version},
            {"isa", info.instruction_set},
            {"numerics_id", info.numerics_id}})
      .Set(1);
}

void ServerMetrics::SetModelWeightBytes(const std::string& model, int64_t bytes) {
  weight_bytes_.Add({{"model", model}}).Set(static_cast<double>(bytes));
}

void ServerMetrics::SetEngine(const Engine* engine) {
  engine_.store(engine, std::memory_order_release);
}

std::string ServerMetrics::Scrape() const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  if (const Engine* engine = engine_.load(std::memory_order_acquire)) {
    AddEngineGauges(engine->stats(), &families);
  }
  AddProcessGauges(&families);
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

void ServerMetrics::OnQueueWait(Phase phase_of_call, std::chrono::nanoseconds wait) {
  phase(phase_of_call).queue_wait->Observe(Seconds(wait));
}

void ServerMetrics::OnBatch(Phase phase_of_batch, int64_t calls, int64_t rows,
                            std::chrono::nanoseconds duration) {
  PhaseMetrics& metrics = phase(phase_of_batch);
  metrics.batch_calls->Observe(static_cast<double>(calls));
  metrics.batch_rows->Observe(static_cast<double>(rows));
  metrics.compute->Observe(Seconds(duration));
}

void ServerMetrics::OnTokens(Phase phase_of_call, int64_t tokens) {
  phase(phase_of_call).tokens->Increment(static_cast<double>(tokens));
}

void ServerMetrics::OnMaskedRows(int64_t rows) {
  masked_rows_->Increment(static_cast<double>(rows));
}

void ServerMetrics::OnNonFinite(int64_t values) {
  nonfinite_values_->Increment(static_cast<double>(values));
}

void ServerMetrics::OnSessionCreated() { sessions_created_->Increment(); }

void ServerMetrics::OnSessionEnded(EndReason reason) {
  sessions_ended_[static_cast<size_t>(reason)]->Increment();
}

void ServerMetrics::OnCancelled(std::string_view reason) {
  cancelled_.Add({{"reason", std::string(reason)}}).Increment();
}

void ServerMetrics::OnRejected(std::string_view reason) {
  rejected_.Add({{"reason", std::string(reason)}}).Increment();
}

}  // namespace attnserve
