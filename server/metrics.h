// What the server measures, in Prometheus' form. Base units (seconds, bytes), no session ids.
#ifndef ATTNSERVE_SERVER_METRICS_H_
#define ATTNSERVE_SERVER_METRICS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "grpcpp/support/status.h"
#include "lib/engine/engine.h"
#include "lib/engine/observer.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "server/rpc_names.h"

namespace attnserve {

// What attnserve_build_info says.
struct BuildInfo {
  std::string version;
  std::string onednn_version;
  std::string instruction_set;
  std::string numerics_id;
};

// All metrics of a server. Counters are looked up once and kept: a call costs a few atomic
// additions and, for histograms, an uncontended lock. Thread-safe.
class ServerMetrics final : public EngineObserver {
 public:
  ServerMetrics();
  ~ServerMetrics() override;

  // A call began; it ended with `code` after `duration`.
  void OnRpcStarted(Rpc rpc);
  // Calls that ever began.
  int64_t rpcs_started() const { return rpcs_started_.load(std::memory_order_relaxed); }
  void OnRpcEnded(Rpc rpc, grpc::StatusCode code, std::chrono::nanoseconds duration);

  void SetBuildInfo(const BuildInfo& info);
  void SetModelWeightBytes(const std::string& model, int64_t bytes);

  // Whose queue and memory are shown from now on; outlives this object or is set to null before.
  void SetEngine(const Engine* engine);

  // The page /metrics: text format 0.0.4.
  std::string Scrape() const;

  void OnQueueWait(Phase phase, std::chrono::nanoseconds wait) override;
  void OnBatch(Phase phase, int64_t calls, int64_t rows,
               std::chrono::nanoseconds duration) override;
  void OnTokens(Phase phase, int64_t tokens) override;
  void OnMaskedRows(int64_t rows) override;
  void OnNonFinite(int64_t values) override;
  void OnSessionCreated() override;
  void OnSessionEnded(EndReason reason) override;
  void OnCancelled(std::string_view reason) override;
  void OnRejected(std::string_view reason) override;

 private:
  static constexpr size_t kPhaseCount = 4;
  static constexpr size_t kCodeCount = 17;  // codes of gRPC, 0 to 16

  struct PhaseMetrics {
    prometheus::Histogram* queue_wait = nullptr;
    prometheus::Histogram* batch_calls = nullptr;
    prometheus::Histogram* batch_rows = nullptr;
    prometheus::Histogram* compute = nullptr;
    prometheus::Counter* tokens = nullptr;
  };
  // Series of codes that have occurred; filled in at the first time.
  struct RpcMetrics {
    prometheus::Gauge* in_flight = nullptr;
    std::array<std::atomic<prometheus::Counter*>, kCodeCount> count{};
    std::array<std::atomic<prometheus::Histogram*>, kCodeCount> duration{};
  };

  PhaseMetrics& phase(Phase phase) { return phases_[static_cast<size_t>(phase)]; }

  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& rpc_count_;
  prometheus::Family<prometheus::Histogram>& rpc_duration_;
  prometheus::Family<prometheus::Counter>& ended_;
  prometheus::Family<prometheus::Counter>& cancelled_;
  prometheus::Family<prometheus::Counter>& rejected_;
  prometheus::Family<prometheus::Gauge>& build_info_;
  prometheus::Family<prometheus::Gauge>& weight_bytes_;
  std::array<RpcMetrics, kRpcCount> rpcs_;
  std::atomic<int64_t> rpcs_started_{0};
  std::array<PhaseMetrics, kPhaseCount> phases_;
  prometheus::Counter* masked_rows_;
  prometheus::Counter* nonfinite_values_;
  prometheus::Counter* sessions_created_;
  std::array<prometheus::Counter*, 2> sessions_ended_;  // by EndReason
  std::atomic<const Engine*> engine_{nullptr};
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_METRICS_H_
