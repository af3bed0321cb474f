// One step of Decode, however it came.
#ifndef ATTNSERVE_SERVER_DECODE_STEP_H_
#define ATTNSERVE_SERVER_DECODE_STEP_H_

#include <chrono>
#include <string_view>

#include "absl/status/status.h"
#include "attnserve/v1/attention_service.pb.h"
#include "lib/engine/call.h"
#include "server/reactors.h"
#include "server/wire.h"

namespace attnserve {

// Ties a request, an engine call and a reply together. One thread at a time.
class DecodeStep : public ReplySink<attnserve::v1::DecodeResponse> {
 public:
  // Makes the call. Both messages outlive the step. What is wrong with the request is returned and
  // also kept in the call.
  const absl::Status& Fill(const attnserve::v1::DecodeRequest& request,
                           attnserve::v1::DecodeResponse* response,
                           std::chrono::steady_clock::time_point deadline);

  DecodeCall& call() { return call_; }

  void Done(const absl::Status& status) final;

 protected:
  // The step has ended; after OK the reply is complete. The last use of the step by the engine.
  virtual void Ended(const absl::Status& status) = 0;

 private:
  TensorDecoder tensors_;
  DecodeCall call_;
};

// Puts the outcome of a step into `result`, whose response has been filled where it succeeded.
// Errors name fields below `prefix`.
void FillResult(const absl::Status& status, std::string_view prefix,
                attnserve::v1::DecodeResult* result);

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_DECODE_STEP_H_
