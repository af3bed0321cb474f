// What the service classes share.
#ifndef ATTNSERVE_SERVER_BACKEND_H_
#define ATTNSERVE_SERVER_BACKEND_H_

#include <atomic>

#include "absl/status/status.h"
#include "lib/base/errors.h"
#include "lib/engine/engine.h"
#include "lib/model/model_registry.h"
#include "server/metrics.h"

namespace attnserve {

// The engine and the models behind the services. The services are reachable before the models are
// loaded, so that health can be asked for; until Open every call fails with STARTING. Thread-safe.
class Backend {
 public:
  // `metrics` outlives this object.
  explicit Backend(ServerMetrics* metrics) : metrics_(*metrics) {}

  // Once. Both outlive the gRPC server.
  void Open(Engine* engine, const ModelRegistry* models) {
    engine_ = engine;
    models_ = models;
    open_.store(true, std::memory_order_release);
  }

  // OK after Open, else UNAVAILABLE STARTING.
  absl::Status CheckOpen() const {
    return open_.load(std::memory_order_acquire) ? absl::OkStatus() : Starting();
  }

  // After CheckOpen returned OK.
  Engine& engine() const { return *engine_; }
  const ModelRegistry& models() const { return *models_; }

  ServerMetrics& metrics() const { return metrics_; }

 private:
  ServerMetrics& metrics_;
  Engine* engine_ = nullptr;
  const ModelRegistry* models_ = nullptr;
  std::atomic<bool> open_{false};
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_BACKEND_H_
