#include "server/calls.h"

#include <string_view>

#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/model/layer_spec_proto.h"
#include "server/time_conversion.h"

namespace attnserve {
namespace {

namespace v1 = attnserve::v1;

// Decodes the tensors of one request one after the other, keeping the first error.
class TensorFields {
 public:
  explicit TensorFields(TensorDecoder* decoder) : decoder_(*decoder) {}

  void Add(std::string_view field, bool present, const v1::Tensor& tensor, TensorView* view) {
    if (present && status_.ok()) status_ = decoder_.Decode(field, tensor, view);
  }
  const absl::Status& status() const { return status_; }

 private:
  TensorDecoder& decoder_;
  absl::Status status_;
};

template <class CallT>
void AddMasks(const v1::CallMasks& masks, TensorFields* fields, CallT* call) {
  fields->Add("masks.lengths", masks.has_lengths(), masks.lengths(), &call->lengths);
  fields->Add("masks.key_mask", masks.has_key_mask(), masks.key_mask(), &call->key_mask);
  fields->Add("masks.attention_mask", masks.has_attention_mask(), masks.attention_mask(),
              &call->attention_mask);
}

template <class Request>
absl::Status FillCommon(const Request& request, const TensorDecoder& tensors, Call* call) {
  call->dtype = tensors.dtype();
  if (tensors.uses_values()) {
    call->reply_expansion = static_cast<int64_t>(sizeof(float) / ElementSize(call->dtype));
  }
  return DecodeStages("stages", request.stages(), &call->stages);
}

}  // namespace

absl::Status FillSessionId(const std::string& id, std::string_view* target) {
  *target = id;
  if (id.empty()) return BadOption("session_id", "is not set; it says whose cache is meant");
  return absl::OkStatus();
}

absl::Status FillCall(const v1::ForwardRequest& request, const ModelRegistry& models,
                      TensorDecoder* tensors, ForwardCall* call) {
  call->request_bytes = static_cast<int64_t>(request.ByteSizeLong());
  ATTNSERVE_ASSIGN_OR_RETURN(call->model, models.Find(request.model()));
  if (request.has_layer()) call->layer = request.layer();
  TensorFields fields(tensors);
  fields.Add("x", request.has_x(), request.x(), &call->x);
  fields.Add("context", request.has_context(), request.context(), &call->context);
  AddMasks(request.masks(), &fields, call);
  fields.Add("positions", request.has_positions(), request.positions(), &call->positions);
  ATTNSERVE_RETURN_IF_ERROR(fields.status());
  call->dropout = {request.dropout().p(), request.dropout().seed()};
  return FillCommon(request, *tensors, call);
}

absl::Status FillCall(const v1::AttendRequest& request, const ModelRegistry&,
                      TensorDecoder* tensors, AttendCall* call) {
  call->request_bytes = static_cast<int64_t>(request.ByteSizeLong());
  TensorFields fields(tensors);
  fields.Add("q", request.has_q(), request.q(), &call->q);
  fields.Add("k", request.has_k(), request.k(), &call->k);
  fields.Add("v", request.has_v(), request.v(), &call->v);
  fields.Add("past_key", request.has_past_key(), request.past_key(), &call->past_key);
  fields.Add("past_value", request.has_past_value(), request.past_value(), &call->past_value);
  AddMasks(request.masks(), &fields, call);
  fields.Add("static_cache_lengths", request.has_static_cache_lengths(),
             request.static_cache_lengths(), &call->static_cache_lengths);
  ATTNSERVE_RETURN_IF_ERROR(fields.status());
  call->head_count = request.head_count();
  call->kv_head_count = request.kv_head_count();
  ATTNSERVE_ASSIGN_OR_RETURN(call->options,
                             AttentionOptionsFromProto(request.options(), "options"));
  call->dropout = {request.dropout().p(), request.dropout().seed()};
  call->return_present = request.return_present();
  return FillCommon(request, *tensors, call);
}

absl::Status FillCall(const v1::DecodeRequest& request, TensorDecoder* tensors, DecodeCall* call) {
  call->request_bytes = static_cast<int64_t>(request.ByteSizeLong());
  const absl::Status id_status = FillSessionId(request.session_id(), &call->session_id);
  if (request.has_layer()) call->layer = request.layer();
  if (request.has_expected_position()) call->expected_position = request.expected_position();
  call->request_id = request.request_id();
  ATTNSERVE_RETURN_IF_ERROR(id_status);
  TensorFields fields(tensors);
  fields.Add("x", request.has_x(), request.x(), &call->x);
  fields.Add("q", request.has_q(), request.q(), &call->q);
  fields.Add("k", request.has_k(), request.k(), &call->k);
  fields.Add("v", request.has_v(), request.v(), &call->v);
  fields.Add("context", request.has_context(), request.context(), &call->context);
  fields.Add("attention_mask", request.has_attention_mask(), request.attention_mask(),
             &call->attention_mask);
  fields.Add("tree_mask", request.has_tree_mask(), request.tree_mask(), &call->tree_mask);
  fields.Add("positions", request.has_positions(), request.positions(), &call->positions);
  ATTNSERVE_RETURN_IF_ERROR(fields.status());
  return FillCommon(request, *tensors, call);
}

absl::Status FillCall(const v1::ResetCacheRequest& request, SessionCall* call) {
  call->kind = SessionCall::Kind::kReset;
  call->request_bytes = static_cast<int64_t>(request.ByteSizeLong());
  call->layers.assign(request.layers().begin(), request.layers().end());
  return FillSessionId(request.session_id(), &call->session_id);
}

absl::Status FillCall(const v1::TruncateSessionRequest& request, SessionCall* call) {
  call->kind = SessionCall::Kind::kTruncate;
  call->length = request.length();
  return FillSessionId(request.session_id(), &call->session_id);
}

absl::Status FillCall(const v1::DeleteSessionRequest& request, SessionCall* call) {
  call->kind = SessionCall::Kind::kDelete;
  return FillSessionId(request.session_id(), &call->session_id);
}

void FillReply(const SessionCall& call, v1::ResetCacheResponse* reply) {
  SessionToProto(call.info, reply->mutable_session());
}

void FillReply(const SessionCall& call, v1::TruncateSessionResponse* reply) {
  SessionToProto(call.info, reply->mutable_session());
}

void FillReply(const SessionCall& call, v1::DeleteSessionResponse* reply) {
  reply->set_existed(call.existed);
}

void SessionToProto(const SessionInfo& info, v1::Session* proto) {
  proto->set_session_id(info.id);
  proto->set_generation(info.generation);
  proto->set_model(info.model);
  for (const SessionLayerInfo& layer : info.layers) {
    v1::SessionLayer* target = proto->add_layers();
    target->set_length(layer.length);
    target->set_kv_bytes(layer.kv_bytes);
    target->set_context_length(layer.context_length);
    target->set_context_bytes(layer.context_bytes);
  }
  proto->set_min_length(info.min_length());
  proto->set_max_tokens(info.max_tokens);
  if (info.cache_dtype.has_value()) proto->set_cache_dtype(DTypeToProto(*info.cache_dtype));
  proto->set_owned_bytes(info.owned_bytes);
  *proto->mutable_create_time() = TimeToProto(info.create_time);
  *proto->mutable_ttl() = DurationToProto(info.ttl);
  *proto->mutable_expires_in() = DurationToProto(info.expires_in);
  proto->set_pending_count(info.pending_count);
}

}  // namespace attnserve
