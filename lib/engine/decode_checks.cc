#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/engine/checks.h"
#include "lib/engine/work.h"

namespace attnserve {
namespace {

absl::Status CheckCoreInputs(const DecodeCall& call, const LayerSpec& spec) {
  ATTNSERVE_RETURN_IF_ERROR(
      CheckAbsent("x", call.x, "a core-attention layer takes q, k and v, already projected"));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckAbsent("context", call.context, "a core-attention layer has no context"));
  ATTNSERVE_RETURN_IF_ERROR(CheckTensor("q", call.q, call.dtype,
                                        {1, spec.head_count, kAnySize, spec.key_head_size},
                                        "[1, H, T, d_k]"));
  ATTNSERVE_RETURN_IF_ERROR(CheckTensor("k", call.k, call.dtype,
                                        {1, spec.kv_head_count, kAnySize, spec.key_head_size},
                                        "[1, G, N, d_k]"));
  return CheckTensor("v", call.v, call.dtype,
                     {1, spec.kv_head_count, call.k.dim(2), spec.value_head_size},
                     "[1, G, N, d_v]");
}

absl::Status CheckModelInputs(const DecodeCall& call, const LayerSpec& spec) {
  const std::pair<const char*, const TensorView*> absent[] = {
      {"q", &call.q}, {"k", &call.k}, {"v", &call.v}};
  for (const auto& [field, tensor] : absent) {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckAbsent(field, *tensor, "the layer projects q, k and v itself, from x"));
  }
  ATTNSERVE_RETURN_IF_ERROR(
      CheckTensor("x", call.x, call.dtype, {1, kAnySize, spec.input_size}, "[1, T, input_size]"));
  if (call.x.dim(1) == 0) return BadShape("x", "has no token; expected T >= 1");
  return absl::OkStatus();
}

// The layers a step goes through: [first, end).
absl::Status LayerRange(const DecodeCall& call, Session& session, size_t* first, size_t* end) {
  const size_t count = session.layers().size();
  if (call.layer.has_value()) {
    if (*call.layer < 0 || static_cast<size_t>(*call.layer) >= count) {
      return LayerNotFound(*call.layer, static_cast<int64_t>(count));
    }
    *first = static_cast<size_t>(*call.layer);
    *end = *first + 1;
    return absl::OkStatus();
  }
  *first = 0;
  *end = count;
  for (size_t i = 0; i + 1 < count; ++i) {
    const LayerSpec& a = session.layers()[i].layer->spec();
    const LayerSpec& b = session.layers()[i + 1].layer->spec();
    if (a.kind == LayerKind::kCoreAttention || a.output_size != b.input_size) {
      return BadOption("layer",
                       absl::StrCat("is not set, but layer ", i + 1,
                                    " cannot take the output of layer ", i, "; name one layer"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNewTokens(const DecodeCall& call, bool cross, int64_t queries, int64_t new_keys) {
  if (call.positions.present()) {
    if (queries != new_keys && queries != 0) {
      return BadOption("positions", absl::StrCat("needs as many queries as new tokens; q has ",
                                                 queries, ", k has ", new_keys));
    }
    ATTNSERVE_RETURN_IF_ERROR(
        CheckTensor("positions", call.positions, DType::kI64, {new_keys}, "[N]"));
    ATTNSERVE_RETURN_IF_ERROR(CheckRange("positions", call.positions, 0, kMaxPosition, false));
  }
  if (call.tree_mask.present()) {
    if (cross) {
      return BadOption("tree_mask", "must not be set: keys of cross-attention are not the step's");
    }
    if (queries != new_keys) {
      return BadOption("tree_mask", absl::StrCat("needs as many queries as new tokens; q has ",
                                                 queries, ", k has ", new_keys));
    }
    ATTNSERVE_RETURN_IF_ERROR(
        CheckTensor("tree_mask", call.tree_mask, DType::kBool, {new_keys, new_keys}, "[N, N]"));
    ATTNSERVE_RETURN_IF_ERROR(CheckBools("tree_mask", call.tree_mask));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDecodeCall(const DecodeCall& call, Session& session, const EngineLimits& limits) {
  constexpr size_t kMaxRequestId = 128;
  if (call.request_id.size() > kMaxRequestId) {
    return BadOption("request_id", absl::StrCat("has ", call.request_id.size(),
                                                " bytes; expected at most ", kMaxRequestId));
  }
  if (call.expected_position.has_value() && *call.expected_position < 0) {
    return BadOption("expected_position",
                     absl::StrCat("is ", *call.expected_position, "; expected >= 0"));
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckStages(call.stages));
  size_t first = 0, end = 0;
  ATTNSERVE_RETURN_IF_ERROR(LayerRange(call, session, &first, &end));

  const LayerSpec& spec = session.layers()[first].layer->spec();
  const bool core = spec.kind == LayerKind::kCoreAttention;
  ATTNSERVE_RETURN_IF_ERROR(core ? CheckCoreInputs(call, spec) : CheckModelInputs(call, spec));

  bool cross = false;
  for (size_t i = first; i < end; ++i) {
    const LayerSpec& layer = session.layers()[i].layer->spec();
    if (layer.kind != LayerKind::kCrossAttention) continue;
    cross = true;
    if (call.context.present()) {
      ATTNSERVE_RETURN_IF_ERROR(CheckTensor("context", call.context, call.dtype,
                                            {1, kAnySize, layer.context_size},
                                            "[1, S, context_size]"));
      if (limits.max_scores < call.context.dim(1)) {
        return TooLarge("context", absl::StrCat("has ", call.context.dim(1),
                                                " rows; expected at most ", limits.max_scores));
      }
    }
  }
  if (!cross) {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckAbsent("context", call.context, "no layer of this step is cross-attention"));
  }
  const int64_t queries = core ? call.q.dim(2) : call.x.dim(1);
  const int64_t new_keys = core ? call.k.dim(2) : queries;
  ATTNSERVE_RETURN_IF_ERROR(CheckNewTokens(call, cross, queries, new_keys));
  return CheckMaskContents("attention_mask", call.attention_mask, call.dtype);
}

}  // namespace attnserve
