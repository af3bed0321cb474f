#include "server/decode_step.h"

#include "lib/base/errors.h"
#include "server/calls.h"
#include "server/status.h"

namespace attnserve {

const absl::Status& DecodeStep::Fill(const v1::DecodeRequest& request, v1::DecodeResponse* response,
                                     std::chrono::steady_clock::time_point deadline) {
  set_response(response);
  call_.error = FillCall(request, &tensors_, &call_);
  call_.sink = this;
  call_.deadline = deadline;
  encoder().set_uses_values(tensors_.uses_values());
  return call_.error;
}

void DecodeStep::Done(const absl::Status& status) {
  encoder().Finish();
  if (status.ok()) {
    response()->set_position(call_.position);
    response()->set_length(call_.length);
    response()->set_replayed(call_.replayed);
  }
  Ended(status);
}

void FillResult(const absl::Status& status, std::string_view prefix, v1::DecodeResult* result) {
  if (!status.ok()) result->clear_response();
  *result->mutable_status() = ToRpcStatus(WithFieldPrefix(status, prefix));
}

}  // namespace attnserve
