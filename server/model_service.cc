#include "server/model_service.h"

#include "lib/base/status_macros.h"
#include "lib/model/layer_spec_proto.h"
#include "server/reactors.h"
#include "server/time_conversion.h"

namespace attnserve {
namespace {

void ModelToProto(const Model& model, v1::Model* proto) {
  proto->set_name(model.name());
  proto->set_format(model.format());
  proto->set_layer_count(static_cast<int32_t>(model.layer_count()));
  proto->set_max_tokens(model.max_tokens());
  proto->set_weight_dtype(DTypeToProto(model.weight_dtype()));
  proto->set_weight_bytes(model.weight_bytes());
  proto->set_layers_chain(model.chains());
}

}  // namespace

grpc::ServerUnaryReactor* ModelService::ListModels(grpc::CallbackServerContext* context,
                                                   const v1::ListModelsRequest*,
                                                   v1::ListModelsResponse* response) {
  return Answer(Rpc::kListModels, backend_, context, [&] {
    for (const auto& model : backend_.models().List()) {
      ModelToProto(*model, response->add_models());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ModelService::GetModel(grpc::CallbackServerContext* context,
                                                 const v1::GetModelRequest* request,
                                                 v1::GetModelResponse* response) {
  return Answer(Rpc::kGetModel, backend_, context, [&]() -> absl::Status {
    ATTNSERVE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                               backend_.models().Find(request->name()));
    ModelToProto(*model, response->mutable_model());
    for (const auto& layer : model->layers()) {
      *response->add_layers() = LayerSpecToProto(layer->spec());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ModelService::GetServerInfo(grpc::CallbackServerContext* context,
                                                      const v1::GetServerInfoRequest*,
                                                      v1::GetServerInfoResponse* response) {
  return Answer(Rpc::kGetServerInfo, backend_, context, [&] {
    FillServerInfo(response);
    return absl::OkStatus();
  });
}

void ModelService::FillServerInfo(v1::GetServerInfoResponse* response) const {
  const EngineOptions& options = backend_.engine().options();
  const EngineStats stats = backend_.engine().stats();
  response->set_server_instance_id(facts_.instance_id);
  response->set_version(facts_.build.version);
  *response->mutable_start_time() = TimeToProto(facts_.start_time);
  response->set_instruction_set(facts_.build.instruction_set);
  response->set_onednn_version(facts_.build.onednn_version);
  response->set_numerics_id(facts_.build.numerics_id);
  response->set_thread_count(options.worker_count);
  response->set_max_message_bytes(facts_.max_message_bytes);
  response->set_max_stage_bytes(options.limits.max_stage_bytes);
  response->set_max_scores(options.limits.max_scores);
  response->set_kv_budget_bytes(stats.kv_budget_bytes);
  response->set_kv_used_bytes(stats.kv_charged_bytes);
  response->set_max_sessions(options.limits.max_sessions);
  response->set_session_count(stats.session_count);
  *response->mutable_default_session_ttl() = DurationToProto(options.default_session_ttl);
  response->set_tokens_per_block(kTokensPerBlock);
  response->set_max_reply_bytes(options.limits.max_reply_bytes);
}

}  // namespace attnserve
