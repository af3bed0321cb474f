#include "server/session_service.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/model/layer_spec_proto.h"
#include "server/reactors.h"
#include "server/time_conversion.h"

namespace attnserve {
namespace {

constexpr int kDefaultPageSize = 100;
constexpr int kMaxPageSize = 1000;
constexpr int kMaxCoreLayers = 1024;

absl::Status FillCoreLayers(const v1::CoreLayers& core, std::vector<LayerSpec>* layers) {
  const int count = core.layers_size();
  if (count == 0 || count > kMaxCoreLayers) {
    return BadOption("core.layers",
                     absl::StrCat("has ", count, " entries; expected 1 to ", kMaxCoreLayers));
  }
  for (int i = 0; i < count; ++i) {
    const std::string field = absl::StrCat("core.layers[", i, "]");
    ATTNSERVE_ASSIGN_OR_RETURN(layers->emplace_back(), LayerSpecFromProto(core.layers(i), field));
    if (layers->back().kind != LayerKind::kCoreAttention) {
      return BadOption(field + ".kind",
                       "is not LAYER_KIND_CORE_ATTENTION; layers with weights come with a model");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CreateSessionOptions> OptionsFromProto(const v1::CreateSessionRequest& request,
                                                      const ModelRegistry& models) {
  CreateSessionOptions options;
  options.id = request.session_id();
  switch (request.layers_case()) {
    case v1::CreateSessionRequest::kModel: {
      ATTNSERVE_ASSIGN_OR_RETURN(options.model, models.Find(request.model()));
      break;
    }
    case v1::CreateSessionRequest::kCore:
      ATTNSERVE_RETURN_IF_ERROR(FillCoreLayers(request.core(), &options.core_layers));
      break;
    case v1::CreateSessionRequest::LAYERS_NOT_SET:
      return BadOption("layers", "is not set; set model (\"\" for the only one) or core");
  }
  options.max_tokens = request.max_tokens();
  options.reserve = request.reserve();
  if (request.has_ttl()) {
    ATTNSERVE_ASSIGN_OR_RETURN(options.ttl, PositiveDurationFromProto("ttl", request.ttl()));
  }
  if (request.cache_dtype() != v1::DTYPE_UNSPECIFIED) {
    options.override_cache_dtype = true;
    ATTNSERVE_ASSIGN_OR_RETURN(options.cache_dtype,
                               DTypeFromProto(request.cache_dtype(), "cache_dtype"));
    if (!IsCacheType(options.cache_dtype)) {
      return BadDType("cache_dtype",
                      absl::StrCat("is ", std::string(DTypeName(options.cache_dtype)),
                                   "; a cache holds F32, F16, BF16 or I8"));
    }
  }
  return options;
}

absl::Status Create(const v1::CreateSessionRequest& request, const Backend& backend,
                    v1::CreateSessionResponse* response) {
  ATTNSERVE_ASSIGN_OR_RETURN(const CreateSessionOptions options,
                             OptionsFromProto(request, backend.models()));
  ATTNSERVE_ASSIGN_OR_RETURN(const CreatedSession created, backend.engine().CreateSession(options));
  SessionToProto(created.info, response->mutable_session());
  response->set_bytes_per_token(created.bytes_per_token);
  response->set_tokens_per_block(kTokensPerBlock);
  response->set_bytes_per_block(created.bytes_per_block);
  response->set_reserved_bytes(created.reserved_bytes);
  return absl::OkStatus();
}

void EndedToProto(const Tombstone& tombstone, v1::EndedSession* proto) {
  proto->set_session_id(tombstone.id);
  proto->set_generation(tombstone.generation);
  proto->set_reason(tombstone.reason == EndReason::kDeleted ? v1::EndedSession::REASON_DELETED
                                                            : v1::EndedSession::REASON_EXPIRED);
  *proto->mutable_end_time() = TimeToProto(tombstone.end_time);
}

absl::Status List(const v1::ListSessionsRequest& request, Engine& engine,
                  v1::ListSessionsResponse* response) {
  if (request.page_size() < 0) {
    return BadOption("page_size", absl::StrCat("is ", request.page_size(), "; expected >= 0"));
  }
  if (!request.page_token().empty() && !CheckSessionId("page_token", request.page_token()).ok()) {
    return BadOption("page_token", "is not a next_page_token of this server");
  }
  const int page_size =
      request.page_size() == 0 ? kDefaultPageSize : std::min(request.page_size(), kMaxPageSize);
  SessionPage page = engine.ListSessions(page_size, request.page_token(), request.show_ended());
  for (const SessionInfo& info : page.sessions) SessionToProto(info, response->add_sessions());
  for (const Tombstone& tombstone : page.ended) EndedToProto(tombstone, response->add_ended());
  response->set_next_page_token(std::move(page.next_page_token));
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* SessionService::CreateSession(grpc::CallbackServerContext* context,
                                                        const v1::CreateSessionRequest* request,
                                                        v1::CreateSessionResponse* response) {
  return Answer(Rpc::kCreateSession, backend_, context,
                [&] { return Create(*request, backend_, response); });
}

grpc::ServerUnaryReactor* SessionService::GetSession(grpc::CallbackServerContext* context,
                                                     const v1::GetSessionRequest* request,
                                                     v1::GetSessionResponse* response) {
  return Answer(Rpc::kGetSession, backend_, context, [&]() -> absl::Status {
    std::string_view id;
    ATTNSERVE_RETURN_IF_ERROR(FillSessionId(request->session_id(), &id));
    ATTNSERVE_ASSIGN_OR_RETURN(const SessionInfo info,
                               backend_.engine().GetSession(request->session_id()));
    SessionToProto(info, response->mutable_session());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SessionService::ListSessions(grpc::CallbackServerContext* context,
                                                       const v1::ListSessionsRequest* request,
                                                       v1::ListSessionsResponse* response) {
  return Answer(Rpc::kListSessions, backend_, context,
                [&] { return List(*request, backend_.engine(), response); });
}

grpc::ServerUnaryReactor* SessionService::DeleteSession(grpc::CallbackServerContext* context,
                                                        const v1::DeleteSessionRequest* request,
                                                        v1::DeleteSessionResponse* response) {
  auto* reactor = new SessionReactor<v1::DeleteSessionRequest, v1::DeleteSessionResponse>(
      Rpc::kDeleteSession, backend_, response);
  reactor->Start(*context, *request);
  return reactor;
}

grpc::ServerUnaryReactor* SessionService::ResetCache(grpc::CallbackServerContext* context,
                                                     const v1::ResetCacheRequest* request,
                                                     v1::ResetCacheResponse* response) {
  auto* reactor = new SessionReactor<v1::ResetCacheRequest, v1::ResetCacheResponse>(
      Rpc::kResetCache, backend_, response);
  reactor->Start(*context, *request);
  return reactor;
}

grpc::ServerUnaryReactor* SessionService::TruncateSession(grpc::CallbackServerContext* context,
                                                          const v1::TruncateSessionRequest* request,
                                                          v1::TruncateSessionResponse* response) {
  auto* reactor = new SessionReactor<v1::TruncateSessionRequest, v1::TruncateSessionResponse>(
      Rpc::kTruncateSession, backend_, response);
  reactor->Start(*context, *request);
  return reactor;
}

}  // namespace attnserve
