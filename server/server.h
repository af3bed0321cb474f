// The whole server: owns everything, in order of construction.
#ifndef ATTNSERVE_SERVER_SERVER_H_
#define ATTNSERVE_SERVER_SERVER_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server.h"
#include "lib/engine/engine.h"
#include "lib/model/model_registry.h"
#include "server/attention_service.h"
#include "server/backend.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/model_service.h"
#include "server/options.h"
#include "server/session_service.h"

namespace attnserve {

// Life: Start (listens; health is NOT_SERVING, calls fail with STARTING), Load (loads the models;
// health is SERVING), Drain. Destroying it cancels what still runs. Methods are called by one
// thread.
class Server {
 public:
  // Listens everywhere, so that a wrong address shows before models are loaded. Unavailable if an
  // address cannot be bound.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  ~Server();

  // Loads the models and takes calls. Errors of LoadModel and ModelRegistry::Add.
  absl::Status Load();

  // Stops: health is NOT_SERVING, new work fails with DRAINING, idle streams end, what runs gets
  // until options.drain_timeout to finish, the rest is cancelled. Returns whether all finished.
  bool Drain();

  // With real ports, in the order of options.listen.
  const std::vector<std::string>& grpc_addresses() const { return grpc_addresses_; }
  // Empty without HTTP.
  std::string http_address() const { return http_ == nullptr ? "" : http_->address(); }

 private:
  explicit Server(const ServerOptions& options);

  absl::Status StartHttp();
  absl::Status StartGrpc();
  absl::Status LoadModels();
  void StartEngine();
  void SetServing(bool serving);
  void RefuseStragglers(std::chrono::steady_clock::time_point deadline);

  const ServerOptions options_;
  ServerFacts facts_;
  ServerMetrics metrics_;
  Backend backend_;
  ModelRegistry models_;
  std::unique_ptr<Engine> engine_;
  AttentionService attention_service_;
  SessionService session_service_;
  ModelService model_service_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<grpc::Server> grpc_;
  std::vector<std::string> grpc_addresses_;
  std::atomic<bool> serving_{false};
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_SERVER_H_
