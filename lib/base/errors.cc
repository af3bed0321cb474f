#include "lib/base/errors.h"

#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace attnserve {
namespace {

constexpr char kPayloadUrl[] = "attnserve/error";

// Quotas come back when other calls end; 100 ms is a few batches.
constexpr int64_t kRetryAfterMs = 100;
// Memory comes back when sessions end, which takes longer.
constexpr int64_t kBudgetRetryAfterMs = 1000;

// The payload is a list of strings, each preceded by its size: reason, field, retry, then metadata
// keys and values in turn.
std::string Encode(const ErrorDetail& detail) {
  std::string out;
  const auto add = [&out](std::string_view text) {
    absl::StrAppend(&out, text.size(), ":");
    out.append(text.data(), text.size());
  };
  add(detail.reason);
  add(detail.field);
  add(absl::StrCat(detail.retry_after_ms));
  for (const auto& [key, value] : detail.metadata) {
    add(key);
    add(value);
  }
  return out;
}

std::vector<std::string> Split(const std::string& encoded) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < encoded.size();) {
    const size_t colon = encoded.find(':', at);
    const size_t size = std::stoul(encoded.substr(at, colon - at));
    parts.push_back(encoded.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return parts;
}

absl::Status Make(absl::StatusCode code, std::string_view text, const ErrorDetail& detail) {
  absl::Status status(code, absl::string_view(text.data(), text.size()));
  status.SetPayload(kPayloadUrl, absl::Cord(Encode(detail)));
  return status;
}

absl::Status Invalid(std::string_view reason, std::string_view field, std::string_view text) {
  return Make(absl::StatusCode::kInvalidArgument,
              absl::StrCat(std::string(field), ": ", std::string(text)),
              {std::string(reason), std::string(field), {}, 0});
}

}  // namespace

std::optional<ErrorDetail> GetErrorDetail(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return std::nullopt;
  const std::vector<std::string> parts = Split(std::string(*payload));
  ErrorDetail detail;
  detail.reason = parts[0];
  detail.field = parts[1];
  detail.retry_after_ms = std::stoll(parts[2]);
  for (size_t i = 3; i + 1 < parts.size(); i += 2) detail.metadata[parts[i]] = parts[i + 1];
  return detail;
}

absl::Status WithFieldPrefix(const absl::Status& status, std::string_view prefix) {
  std::optional<ErrorDetail> detail = GetErrorDetail(status);
  if (!detail.has_value() || detail->field.empty()) return status;
  detail->field.insert(0, prefix);
  return Make(status.code(), absl::StrCat(std::string(prefix), std::string(status.message())),
              *detail);
}

absl::Status BadShape(std::string_view field, std::string_view text) {
  return Invalid("BAD_SHAPE", field, text);
}
absl::Status BadDType(std::string_view field, std::string_view text) {
  return Invalid("BAD_DTYPE", field, text);
}
absl::Status BadMask(std::string_view field, std::string_view text) {
  return Invalid("BAD_MASK", field, text);
}
absl::Status SizeMismatch(std::string_view field, std::string_view text) {
  return Invalid("SIZE_MISMATCH", field, text);
}
absl::Status BadOption(std::string_view field, std::string_view text) {
  return Invalid("BAD_OPTION", field, text);
}
absl::Status TooLarge(std::string_view field, std::string_view text) {
  return Invalid("TOO_LARGE", field, text);
}

absl::Status ModelNotFound(std::string_view name, std::string_view served) {
  return Make(
      absl::StatusCode::kNotFound,
      absl::StrCat("no model is called \"", std::string(name), "\"; served: ", std::string(served)),
      {"MODEL_NOT_FOUND", "", {{"model", std::string(name)}}, 0});
}

absl::Status ModelNotChosen(std::string_view served) {
  return Make(absl::StatusCode::kNotFound,
              absl::StrCat("several models are served (", std::string(served),
                           "): choose one with `model` (attnctl: --model)"),
              {"MODEL_NOT_FOUND", "", {{"model", ""}}, 0});
}

absl::Status LayerNotFound(int64_t layer, int64_t layer_count) {
  return Make(absl::StatusCode::kNotFound,
              absl::StrCat("there is no layer ", layer, "; layers are 0 to ", layer_count - 1),
              {"LAYER_NOT_FOUND", "", {{"layer", absl::StrCat(layer)}}, 0});
}

absl::Status SessionNotFound(std::string_view id) {
  return Make(absl::StatusCode::kNotFound,
              absl::StrCat("no session is called \"", std::string(id),
                           "\"; it was never created, was deleted, or the server restarted"),
              {"SESSION_NOT_FOUND", "", {{"session_id", std::string(id)}}, 0});
}

absl::Status SessionExpired(std::string_view id, int64_t ttl_ms) {
  return Make(absl::StatusCode::kNotFound,
              absl::StrCat("session \"", std::string(id), "\" was idle for more than ", ttl_ms,
                           " ms and has expired; create it again, with a longer ttl"),
              {"SESSION_EXPIRED", "", {{"session_id", std::string(id)}}, 0});
}

absl::Status SessionExists(std::string_view id) {
  return Make(absl::StatusCode::kAlreadyExists,
              absl::StrCat("a session is already called \"", std::string(id),
                           "\"; choose another id or delete that one"),
              {"SESSION_EXISTS", "", {{"session_id", std::string(id)}}, 0});
}

absl::Status PositionConflict(int64_t expected_position, int64_t length) {
  return Make(
      absl::StatusCode::kAborted,
      absl::StrCat("expected_position is ", expected_position, " but the layer holds ", length,
                   " tokens: the step was applied before, or somebody else appended"),
      {"POSITION_CONFLICT", "", {{"length", absl::StrCat(length)}}, 0});
}

absl::Status RequestAlreadyApplied(std::string_view request_id, int64_t length) {
  return Make(
      absl::StatusCode::kAborted,
      absl::StrCat("request_id \"", std::string(request_id),
                   "\" was already applied and its reply is no longer kept; the layer holds ",
                   length, " tokens"),
      {"POSITION_CONFLICT", "", {{"length", absl::StrCat(length)}}, 0});
}

absl::Status LayersDiffer(int64_t least_length, int64_t greatest_length) {
  return Make(absl::StatusCode::kAborted,
              absl::StrCat("the layers hold between ", least_length, " and ", greatest_length,
                           " tokens; truncate the session to ", least_length,
                           " before a step through all layers"),
              {"POSITION_CONFLICT", "", {{"length", absl::StrCat(least_length)}}, 0});
}

absl::Status PredecessorFailed() {
  return Make(absl::StatusCode::kAborted,
              "an earlier step of this session in the same call failed, so this one was not tried; "
              "send it again with expected_position",
              {"PREDECESSOR_FAILED", "", {}, 0});
}

absl::Status PositionBeyondLength(std::string_view field, int64_t position, int64_t length,
                                  std::string_view remedy) {
  return Make(
      absl::StatusCode::kOutOfRange,
      absl::StrCat(std::string(field), " is ", position, " but only ", length, " tokens are held; ",
                   std::string(remedy)),
      {"POSITION_BEYOND_LENGTH", std::string(field), {{"length", absl::StrCat(length)}}, 0});
}

absl::Status MaxTokensExceeded(int64_t tokens, int64_t max_tokens, std::string_view remedy) {
  return Make(absl::StatusCode::kOutOfRange,
              absl::StrCat("the sequence would have ", tokens, " tokens; the limit is ", max_tokens,
                           ": ", std::string(remedy)),
              {"MAX_TOKENS", "", {{"max_tokens", absl::StrCat(max_tokens)}}, 0});
}

absl::Status LayerNeedsContext(int64_t layer) {
  return Make(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("layer ", layer, " is cross-attention and has no context yet; send `context`"),
      {"LAYER_NEEDS_CONTEXT", "", {{"layer", absl::StrCat(layer)}}, 0});
}

absl::Status KvBudgetExceeded(int64_t needed_bytes, int64_t held_bytes, int64_t free_bytes,
                              int64_t budget_bytes) {
  const bool fits = needed_bytes <= budget_bytes - held_bytes;
  std::string text = absl::StrCat("the session's cache needs ", needed_bytes, " more bytes");
  if (fits) {
    absl::StrAppend(&text, ", ", free_bytes, " of ", budget_bytes,
                    " are free; delete sessions, wait, or raise --kv_budget_bytes");
  } else {
    absl::StrAppend(&text, " beside the ", held_bytes, " it holds: all sessions together may have ",
                    budget_bytes, "; send or reserve less, or raise --kv_budget_bytes");
  }
  return Make(
      absl::StatusCode::kResourceExhausted, text,
      {"KV_BUDGET",
       "",
       {{"needed_bytes", absl::StrCat(needed_bytes)}, {"free_bytes", absl::StrCat(free_bytes)}},
       fits ? kBudgetRetryAfterMs : 0});
}

absl::Status OutOfMemory(int64_t needed_bytes) {
  return Make(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("the system refused ", needed_bytes,
                   " bytes for keys and values; give the process more memory, or send less "
                   "at once"),
      {"KV_BUDGET", "", {{"needed_bytes", absl::StrCat(needed_bytes)}}, kBudgetRetryAfterMs});
}

absl::Status QueueFull(std::string_view what, int64_t limit) {
  return Make(absl::StatusCode::kResourceExhausted,
              absl::StrCat("the queue is full: ", limit, " ", std::string(what),
                           " are waiting; try again later"),
              {"QUEUE_FULL", "", {}, kRetryAfterMs});
}

absl::Status SessionLimit(int64_t limit) {
  return Make(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("there are ", limit, " sessions, the most this server takes; delete some"),
      {"SESSION_LIMIT", "", {}, kBudgetRetryAfterMs});
}

absl::Status ResponseTooLarge(std::string_view what, int64_t bytes, int64_t limit_bytes,
                              std::string_view remedy) {
  return Make(absl::StatusCode::kResourceExhausted,
              absl::StrCat(std::string(what), " would take ", bytes,
                           " bytes of the reply, which has room for ", limit_bytes, "; ",
                           std::string(remedy)),
              {"RESPONSE_TOO_LARGE",
               "",
               {{"bytes", absl::StrCat(bytes)}, {"limit_bytes", absl::StrCat(limit_bytes)}},
               0});
}

absl::Status Draining() {
  return Make(absl::StatusCode::kUnavailable, "the server is stopping; use another one",
              {"DRAINING", "", {}, 0});
}

absl::Status Starting() {
  return Make(absl::StatusCode::kUnavailable, "the server is loading its models; try again soon",
              {"STARTING", "", {}, kBudgetRetryAfterMs});
}

absl::Status CallCancelled() {
  return absl::CancelledError("the caller cancelled; nothing was applied");
}

absl::Status CallDeadlineExceeded() {
  return absl::DeadlineExceededError(
      "the deadline passed before the work began; nothing was applied");
}

absl::Status KernelFailure(std::string_view text) {
  return Make(absl::StatusCode::kInternal, text, {"KERNEL_FAILURE", "", {}, 0});
}

}  // namespace attnserve
