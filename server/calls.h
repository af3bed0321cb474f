// Requests as the engine takes them, and what it says back.
#ifndef ATTNSERVE_SERVER_CALLS_H_
#define ATTNSERVE_SERVER_CALLS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "attnserve/v1/attention_service.pb.h"
#include "attnserve/v1/session_service.pb.h"
#include "lib/engine/call.h"
#include "lib/model/model_registry.h"
#include "server/wire.h"

namespace attnserve {

// A session's id, which must be there. BAD_OPTION.
absl::Status FillSessionId(const std::string& id, std::string_view* target);

// Each fills `call` with views of `request`; `tensors` holds what had to be converted. Both outlive
// the call. Errors are those of TensorDecoder, MODEL_NOT_FOUND, and BAD_OPTION; they name the field
// as the proto does ("masks.lengths"). The engine checks the rest.
absl::Status FillCall(const attnserve::v1::ForwardRequest& request, const ModelRegistry& models,
                      TensorDecoder* tensors, ForwardCall* call);
absl::Status FillCall(const attnserve::v1::AttendRequest& request, const ModelRegistry& models,
                      TensorDecoder* tensors, AttendCall* call);

// Fills everything that is no tensor also where it returns an error, so that a wrong step can take
// its turn among those of its session.
absl::Status FillCall(const attnserve::v1::DecodeRequest& request, TensorDecoder* tensors,
                      DecodeCall* call);

absl::Status FillCall(const attnserve::v1::ResetCacheRequest& request, SessionCall* call);
absl::Status FillCall(const attnserve::v1::TruncateSessionRequest& request, SessionCall* call);
absl::Status FillCall(const attnserve::v1::DeleteSessionRequest& request, SessionCall* call);

// What the engine has set, after Done(OK).
void FillReply(const SessionCall& call, attnserve::v1::ResetCacheResponse* reply);
void FillReply(const SessionCall& call, attnserve::v1::TruncateSessionResponse* reply);
void FillReply(const SessionCall& call, attnserve::v1::DeleteSessionResponse* reply);

void SessionToProto(const SessionInfo& info, attnserve::v1::Session* proto);

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_CALLS_H_
