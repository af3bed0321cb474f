// The catalogue of errors: one function per reason, each with a fixed code. A message says what
// came, what was expected and what to do.
#ifndef ATTNSERVE_LIB_BASE_ERRORS_H_
#define ATTNSERVE_LIB_BASE_ERRORS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace attnserve {

// What an error of ours carries beside code and message, for programs.
struct ErrorDetail {
  std::string reason;                           // UPPER_SNAKE_CASE, one of those below
  std::string field;                            // path of the wrong field of the request, or empty
  std::map<std::string, std::string> metadata;  // facts, for example {"length": "17"}
  int64_t retry_after_ms = 0;                   // > 0 where waiting can help
};

// The detail of `status`; nullopt if it is OK or not one of ours.
std::optional<ErrorDetail> GetErrorDetail(const absl::Status& status);

// `status` with `prefix` put before the field's path: "x" becomes "steps[3].x". Others unchanged.
absl::Status WithFieldPrefix(const absl::Status& status, std::string_view prefix);

// INVALID_ARGUMENT. `field` is the path of the field in the request, `text` what came and what was
// expected.
absl::Status BadShape(std::string_view field, std::string_view text);
absl::Status BadDType(std::string_view field, std::string_view text);
absl::Status BadMask(std::string_view field, std::string_view text);
absl::Status SizeMismatch(std::string_view field, std::string_view text);
absl::Status BadOption(std::string_view field, std::string_view text);
absl::Status TooLarge(std::string_view field, std::string_view text);

// NOT_FOUND.
absl::Status ModelNotFound(std::string_view name, std::string_view served);
// Its reason is MODEL_NOT_FOUND too: none was named, and several are served.
absl::Status ModelNotChosen(std::string_view served);
absl::Status LayerNotFound(int64_t layer, int64_t layer_count);
absl::Status SessionNotFound(std::string_view id);
absl::Status SessionExpired(std::string_view id, int64_t ttl_ms);

// ALREADY_EXISTS.
absl::Status SessionExists(std::string_view id);

// ABORTED. `length` is the tokens the layer holds.
absl::Status PositionConflict(int64_t expected_position, int64_t length);
absl::Status RequestAlreadyApplied(std::string_view request_id, int64_t length);
absl::Status LayersDiffer(int64_t least_length, int64_t greatest_length);
absl::Status PredecessorFailed();

// OUT_OF_RANGE.
absl::Status PositionBeyondLength(std::string_view field, int64_t position, int64_t length,
                                  std::string_view remedy);
absl::Status MaxTokensExceeded(int64_t tokens, int64_t max_tokens, std::string_view remedy);

// FAILED_PRECONDITION.
absl::Status LayerNeedsContext(int64_t layer);

// RESOURCE_EXHAUSTED.
// `held_bytes`: what the one who asks holds already and keeps. Waiting can help only if the budget
// has room for both.
absl::Status KvBudgetExceeded(int64_t needed_bytes, int64_t held_bytes, int64_t free_bytes,
                              int64_t budget_bytes);
// Its reason is KV_BUDGET too: the system refused memory that the budget allows.
absl::Status OutOfMemory(int64_t needed_bytes);
absl::Status QueueFull(std::string_view what, int64_t limit);
absl::Status SessionLimit(int64_t limit);
// `what` names the tensors, for example "the stages"; `remedy`: "send fewer tokens".
absl::Status ResponseTooLarge(std::string_view what, int64_t bytes, int64_t limit_bytes,
                              std::string_view remedy);

// UNAVAILABLE.
absl::Status Draining();
absl::Status Starting();

// CANCELLED, DEADLINE_EXCEEDED: the caller gave up before the work was applied.
absl::Status CallCancelled();
absl::Status CallDeadlineExceeded();

// INTERNAL: a defect of ours or of a library.
absl::Status KernelFailure(std::string_view text);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_BASE_ERRORS_H_
