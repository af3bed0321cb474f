// Calls as the engine takes them: views of what the caller sent, and where the answer goes.
#ifndef ATTNSERVE_LIB_ENGINE_CALL_H_
#define ATTNSERVE_LIB_ENGINE_CALL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/attention/layer_spec.h"
#include "lib/attention/sequence.h"
#include "lib/base/tensor.h"
#include "lib/model/model.h"
#include "lib/session/session.h"

namespace attnserve {

// Receives the answer of one call. The engine calls the memory functions from one thread, its own
// or the one in Submit, each at most once per tensor, then Done exactly once, as its last use of
// call and sink; an error in Done makes what was written void.
class CallSink {
 public:
  virtual ~CallSink() = default;
  // Memory for tensors of the reply, of product(shape) elements; null is legal where that is 0.
  virtual void* Output(DType dtype, absl::Span<const int64_t> shape) = 0;
  virtual void* StageOutput(Stage stage, int32_t layer, DType dtype,
                            absl::Span<const int64_t> shape) = 0;
  // Asked for by AttendCall::return_present only.
  virtual void* Present(bool key, DType dtype, absl::Span<const int64_t> shape);
  virtual void Done(const absl::Status& status) = 0;
};

// What every call has. The caller keeps it, its sink and all that its views point to alive until
// Done.
struct Call {
  CallSink* sink = nullptr;
  DType dtype = DType::kF32;  // of the request's float tensors and of the reply
  int64_t request_bytes = 0;  // counted against the queue's limit
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  std::chrono::steady_clock::time_point arrival;  // set by Submit
  // Any thread may set it at any time; the call then ends as CANCELLED if it has not been applied.
  std::atomic<bool> cancelled{false};
  // Bytes in the reply for each byte of a tensor: 2 where F16 or BF16 go out as `values`, floats.
  int64_t reply_expansion = 1;
  absl::InlinedVector<Stage, 2> stages;
};

struct ForwardCall : Call {
  std::shared_ptr<const Model> model;
  std::optional<int32_t> layer;  // unset: all, in order
  TensorView x;                  // [B, T, d_in]
  TensorView context;            // [B, S, d_ctx]
  TensorView lengths;            // I64 [B]
  TensorView key_mask;           // BOOL [B, S]
  TensorView attention_mask;     // BOOL or float, broadcast to [B, H, T, S]
  TensorView positions;          // I64 [T] or [B, T]
  DropoutOptions dropout;
};

struct AttendCall : Call {
  TensorView q, k, v;               // [B, heads, tokens, size] or [B, tokens, heads * size]
  TensorView past_key, past_value;  // [B, G, P, size]
  int64_t head_count = 0;           // 0: the tensor's
  int64_t kv_head_count = 0;        // 0: the tensor's
  AttentionOptions options;
  TensorView lengths, key_mask, attention_mask;  // as in ForwardCall
  TensorView static_cache_lengths;               // I64 [B]
  DropoutOptions dropout;
  bool return_present = false;
};

// Ties the steps of one session in one batch or stream together: after one failed, those behind it
// fail with PREDECESSOR_FAILED. Owned by the caller; the engine's thread alone touches it between
// the first Submit and the last Done.
struct StepChain {
  // Whether a step with expected_position starts afresh (streams), or none does (batches).
  bool restarts_at_expected_position = false;
  bool failed = false;
};

struct DecodeCall : Call {
  std::string_view session_id;
  std::optional<int32_t> layer;  // unset: all, in order
  TensorView x;                  // [1, T, d_in]
  TensorView q, k, v;            // [1, H, T, d_k], [1, G, N, d_k], [1, G, N, d_v]
  TensorView context;            // [1, S, d_ctx]
  TensorView attention_mask;     // BOOL or float, broadcast to [1, H, T, P + N]
  TensorView tree_mask;          // BOOL [N, N]
  TensorView positions;          // I64 [N]
  std::optional<int64_t> expected_position;
  std::string_view request_id;  // empty: none
  StepChain* chain = nullptr;   // null: none
  // Whether Submit may run a light step itself where nothing else is to do: no thread has to be
  // woken. Not for steps that others of the same message follow, which are faster side by side.
  bool may_run_in_submit = false;
  absl::Status error;  // a step already known to be wrong; it still takes its turn
  // Bytes that replies of the same message may still have; each step takes its own from it, or
  // fails with RESPONSE_TOO_LARGE. Owned and touched like a StepChain; null: no limit.
  int64_t* reply_budget_bytes = nullptr;

  // Set before Done(OK).
  int64_t position = 0;   // tokens before the step
  int64_t length = 0;     // tokens after it
  bool replayed = false;  // answered from the replies kept
};

// ResetCache, TruncateSession and DeleteSession: they take their turn among the session's steps.
struct SessionCall : Call {
  enum class Kind { kReset, kTruncate, kDelete };
  Kind kind = Kind::kReset;
  std::string_view session_id;
  std::vector<int32_t> layers;  // kReset; empty: all
  int64_t length = 0;           // kTruncate

  // Set before Done(OK).
  SessionInfo info;      // kReset, kTruncate
  bool existed = false;  // kDelete
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_CALL_H_
