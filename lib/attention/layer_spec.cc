#include "lib/attention/layer_spec.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/attention/field_path.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"

namespace attnserve {
namespace {

absl::Status CheckSize(std::string_view field, std::string_view name, int64_t size, int64_t limit) {
  if (size < 0) {
    return BadShape(FieldPath(field, name), absl::StrCat("is ", size, "; sizes are positive"));
  }
  if (size > limit) {
    return TooLarge(FieldPath(field, name), absl::StrCat("is ", size, ", at most ", limit));
  }
  return absl::OkStatus();
}

// Width of all query heads or of all value heads of a query.
absl::Status CheckWidth(std::string_view field, std::string_view name, int64_t heads,
                        int64_t size) {
  if (heads * size <= kMaxWidth) return absl::OkStatus();
  return TooLarge(FieldPath(field, name),
                  absl::StrCat("is ", size, "; head_count * ", std::string(name), " = ", heads,
                               " * ", size, " = ", heads * size, ", at most ", kMaxWidth));
}

absl::Status CheckGivenSizes(std::string_view field, const LayerSpec& spec) {
  ATTNSERVE_RETURN_IF_ERROR(CheckSize(field, "input_size", spec.input_size, kMaxWidth));
  ATTNSERVE_RETURN_IF_ERROR(CheckSize(field, "context_size", spec.context_size, kMaxWidth));
  ATTNSERVE_RETURN_IF_ERROR(CheckSize(field, "output_size", spec.output_size, kMaxWidth));
  ATTNSERVE_RETURN_IF_ERROR(CheckSize(field, "head_count", spec.head_count, kMaxHeads));
  ATTNSERVE_RETURN_IF_ERROR(CheckSize(field, "kv_head_count", spec.kv_head_count, kMaxHeads));
  ATTNSERVE_RETURN_IF_ERROR(CheckSize(field, "key_head_size", spec.key_head_size, kMaxHeadSize));
  return CheckSize(field, "value_head_size", spec.value_head_size, kMaxHeadSize);
}

absl::Status CheckKind(std::string_view field, const LayerSpec& spec) {
  const bool core = spec.kind == LayerKind::kCoreAttention;
  if (core && spec.input_size != 0) {
    return BadShape(FieldPath(field, "input_size"),
                    absl::StrCat("is ", spec.input_size,
                                 "; core attention takes q, k and v and has no x: leave it unset"));
  }
  if (!core && spec.input_size == 0) {
    return BadShape(FieldPath(field, "input_size"), "is 0 or unset; the width of x is required");
  }
  if (spec.kind != LayerKind::kCrossAttention && spec.context_size != 0) {
    return BadShape(FieldPath(field, "context_size"),
                    absl::StrCat("is ", spec.context_size,
                                 "; only cross-attention has a context: leave it unset"));
  }
  return absl::OkStatus();
}

absl::Status CheckProjectionFlags(std::string_view field, const LayerSpec& spec) {
  if (spec.kind == LayerKind::kCoreAttention) {
    const std::pair<std::string_view, bool> flags[] = {
        {"query_bias", spec.query_bias},   {"key_bias", spec.key_bias},
        {"value_bias", spec.value_bias},   {"output_projection", spec.output_projection},
        {"output_bias", spec.output_bias},
    };
    for (const auto& [name, set] : flags) {
      if (set) {
        return BadOption(FieldPath(field, name),
                         "is set; core attention has no weights: leave it unset");
      }
    }
  }
  if (spec.output_bias && !spec.output_projection) {
    return BadOption(FieldPath(field, "output_bias"),
                     "is set without output_projection, which would add it");
  }
  return absl::OkStatus();
}

absl::Status CompleteHeads(std::string_view field, LayerSpec* spec) {
  if (spec->head_count == 0) spec->head_count = 1;
  if (spec->kv_head_count == 0) spec->kv_head_count = spec->head_count;
  const int64_t heads = spec->head_count;
  if (heads % spec->kv_head_count != 0) {
    return BadShape(
        FieldPath(field, "kv_head_count"),
        absl::StrCat("head_count ", heads, " is not a multiple of kv_head_count ",
                     spec->kv_head_count, ": ", heads, " = ", heads / spec->kv_head_count, " * ",
                     spec->kv_head_count, " + ", heads % spec->kv_head_count));
  }
  if (spec->key_head_size == 0) {
    if (spec->kind == LayerKind::kCoreAttention) {
      return BadShape(FieldPath(field, "key_head_size"),
                      "is 0 or unset; core attention has no input_size to derive it from");
    }
    const int64_t width = spec->input_size;
    if (width % heads != 0) {
      return BadShape(FieldPath(field, "head_count"),
                      absl::StrCat("input_size ", width, " is not divisible by head_count ", heads,
                                   ": ", width, " = ", width / heads, " * ", heads, " + ",
                                   width % heads, "; change one of them or set key_head_size"));
    }
    spec->key_head_size = width / heads;
    ATTNSERVE_RETURN_IF_ERROR(CheckSize(field, "key_head_size", spec->key_head_size, kMaxHeadSize));
  }
  if (spec->value_head_size == 0) spec->value_head_size = spec->key_head_size;
  ATTNSERVE_RETURN_IF_ERROR(CheckWidth(field, "key_head_size", heads, spec->key_head_size));
  return CheckWidth(field, "value_head_size", heads, spec->value_head_size);
}

absl::Status CompleteWidths(std::string_view field, LayerSpec* spec) {
  if (spec->kind == LayerKind::kCrossAttention && spec->context_size == 0) {
    spec->context_size = spec->input_size;
  }
  if (spec->output_projection) {
    if (spec->output_size == 0) spec->output_size = spec->input_size;
    return absl::OkStatus();
  }
  if (spec->output_size == 0) spec->output_size = spec->context_width();
  if (spec->output_size != spec->context_width()) {
    return BadShape(
        FieldPath(field, "output_size"),
        absl::StrCat("is ", spec->output_size,
                     "; without output_projection it is head_count * value_head_size = ",
                     spec->head_count, " * ", spec->value_head_size, " = ", spec->context_width()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CompleteLayerSpec(std::string_view field, LayerSpec* spec) {
  ATTNSERVE_RETURN_IF_ERROR(CheckGivenSizes(field, *spec));
  ATTNSERVE_RETURN_IF_ERROR(CheckKind(field, *spec));
  ATTNSERVE_RETURN_IF_ERROR(CheckProjectionFlags(field, *spec));
  ATTNSERVE_RETURN_IF_ERROR(CompleteHeads(field, spec));
  ATTNSERVE_RETURN_IF_ERROR(CompleteWidths(field, spec));
  if (!IsCacheType(spec->cache_dtype)) {
    return BadDType(FieldPath(field, "cache_dtype"),
                    absl::StrCat("is ", std::string(DTypeName(spec->cache_dtype)),
                                 ", not F32, F16, BF16 or I8"));
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckAttentionOptions(FieldPath(field, "attention"), spec->head_count,
                                                  spec->key_head_size, spec->kind,
                                                  spec->attention));
  if (auto* rotary = std::get_if<RotaryPosition>(&spec->attention.position)) {
    if (rotary->dimension == 0) rotary->dimension = spec->key_head_size;
  }
  if (auto* alibi = std::get_if<AlibiPosition>(&spec->attention.position)) {
    if (alibi->slopes.empty()) alibi->slopes = AlibiSlopes(spec->head_count);
  }
  return absl::OkStatus();
}

}  // namespace attnserve
