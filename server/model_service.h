// ModelService.
#ifndef ATTNSERVE_SERVER_MODEL_SERVICE_H_
#define ATTNSERVE_SERVER_MODEL_SERVICE_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "attnserve/v1/model_service.grpc.pb.h"
#include "server/backend.h"
#include "server/metrics.h"

namespace attnserve {

// What GetServerInfo says beside the engine's limits.
struct ServerFacts {
  std::string instance_id;
  BuildInfo build;
  std::chrono::system_clock::time_point start_time;
  int64_t max_message_bytes = 0;
};

// The contract is model_service.proto. Thread-safe.
class ModelService final : public attnserve::v1::ModelService::CallbackService {
 public:
  // Both outlive the gRPC server; `facts` is complete before the backend opens.
  ModelService(const Backend* backend, const ServerFacts* facts)
      : backend_(*backend), facts_(*facts) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const attnserve::v1::ListModelsRequest* request,
                                       attnserve::v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const attnserve::v1::GetModelRequest* request,
                                     attnserve::v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const attnserve::v1::GetServerInfoRequest* request,
                                          attnserve::v1::GetServerInfoResponse* response) override;

 private:
  void FillServerInfo(attnserve::v1::GetServerInfoResponse* response) const;

  const Backend& backend_;
  const ServerFacts& facts_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_MODEL_SERVICE_H_
