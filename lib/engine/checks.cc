#include "lib/engine/checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"

namespace attnserve {
namespace {

int64_t Int64At(const TensorView& tensor, int64_t index) {
  int64_t value;
  std::memcpy(&value, static_cast<const char*>(tensor.data) + index * 8, sizeof value);
  return value;
}

// a * b for non-negative numbers, at most 2^62.
int64_t SaturatingProduct(int64_t a, int64_t b) {
  constexpr int64_t kMost = int64_t{1} << 62;
  if (a == 0 || b == 0) return 0;
  return a > kMost / b ? kMost : a * b;
}

std::string Expected(absl::Span<const int64_t> sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ");
    if (sizes[i] == kAnySize) {
      absl::StrAppend(&text, "any");
    } else {
      absl::StrAppend(&text, sizes[i]);
    }
  }
  return text + "]";
}

}  // namespace

absl::Status CheckTensor(std::string_view field, const TensorView& tensor, DType dtype,
                         absl::Span<const int64_t> sizes, std::string_view meaning) {
  const auto expected = [&] {
    return absl::StrCat("expected ", std::string(meaning), " = ", Expected(sizes));
  };
  if (!tensor.present()) return BadShape(field, absl::StrCat("is missing; ", expected()));
  if (tensor.dtype != dtype) {
    std::string types(DTypeName(dtype));
    if (IsFloat(dtype)) {
      types = IsFloat(tensor.dtype) ? types + " like the other tensors" : "F32, F16 or BF16";
    }
    return BadDType(field, absl::StrCat("came as ", std::string(DTypeName(tensor.dtype)),
                                        "; expected ", types));
  }
  bool fits = tensor.shape.size() == sizes.size();
  for (size_t i = 0; fits && i < sizes.size(); ++i) {
    fits = sizes[i] == kAnySize || tensor.shape[i] == sizes[i];
  }
  if (!fits) {
    return BadShape(
        field, absl::StrCat("came with shape ", ShapeToString(tensor.shape), "; ", expected()));
  }
  return absl::OkStatus();
}

absl::Status CheckAbsent(std::string_view field, const TensorView& tensor, std::string_view why) {
  if (!tensor.present()) return absl::OkStatus();
  return BadOption(field, absl::StrCat("must not be set: ", std::string(why)));
}

absl::Status CheckBools(std::string_view field, const TensorView& tensor) {
  const auto* bytes = static_cast<const uint8_t*>(tensor.data);
  const int64_t count = tensor.elements();
  for (int64_t i = 0; i < count; ++i) {
    if (bytes[i] > 1) {
      return BadMask(field, absl::StrCat("element ", i, " is ", static_cast<int>(bytes[i]),
                                         "; a BOOL is 0 or 1"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRange(std::string_view field, const TensorView& tensor, int64_t least,
                        int64_t most, bool is_mask) {
  const int64_t count = tensor.elements();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = Int64At(tensor, i);
    if (value < least || value > most) {
      const std::string text =
          absl::StrCat("element ", i, " is ", value, "; expected ", least, " to ", most);
      return is_mask ? BadMask(field, text) : BadOption(field, text);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMaskContents(std::string_view field, const TensorView& mask, DType dtype) {
  if (!mask.present()) return absl::OkStatus();
  if (mask.dtype == DType::kBool) return CheckBools(field, mask);
  if (mask.dtype != dtype) {
    return BadDType(
        field, absl::StrCat("came as ", std::string(DTypeName(mask.dtype)), "; expected BOOL or ",
                            std::string(DTypeName(dtype)), " like the other tensors"));
  }
  const int64_t count = mask.elements();
  for (int64_t i = 0; i < count; ++i) {
    const float value = mask.At(i);
    if (std::isnan(value) || value == std::numeric_limits<float>::infinity()) {
      return BadMask(field, absl::StrCat("element ", i, std::isnan(value) ? " is NaN" : " is +inf",
                                         "; a summand is finite, or -inf to mask"));
    }
  }
  return absl::OkStatus();
}

AttentionMaskView BroadcastMask::Row(int64_t batch_row) const {
  AttentionMaskView row = view;
  if (row.data != nullptr) {
    row.data = static_cast<const char*>(view.data) +
               batch_row * batch_stride * static_cast<int64_t>(ElementSize(view.dtype));
  }
  return row;
}

absl::StatusOr<BroadcastMask> ResolveMask(std::string_view field, const TensorView& mask,
                                          int64_t batch, int64_t heads, int64_t queries,
                                          int64_t keys) {
  BroadcastMask result;
  if (!mask.present()) return result;
  const int64_t target[4] = {batch, heads, queries, keys};
  int64_t strides[4] = {0, 0, 0, 0};
  bool fits = mask.rank() >= 1 && mask.rank() <= 4;
  int64_t stride = 1;
  for (int axis = 3, i = mask.rank() - 1; fits && i >= 0; --axis, --i) {
    const int64_t size = mask.dim(i);
    if (axis == 3) {
      fits = size >= 1 && size <= keys;
    } else {
      fits = size == 1 || size == target[axis];
    }
    strides[axis] = size == 1 && target[axis] != 1 ? 0 : stride;
    stride *= size;
  }
  if (queries == 0 || keys == 0) return result;
  if (!fits) {
    return BadMask(field,
                   absl::StrCat("came with shape ", ShapeToString(mask.shape),
                                "; expected one that broadcasts from the right to [B, H, T, S] = ",
                                ShapeToString(absl::MakeConstSpan(target)),
                                " (the last axis may be shorter than S)"));
  }
  result.batch_stride = strides[0];
  result.view = {mask.dtype, mask.data,  strides[1],
                 strides[2], strides[3], mask.dim(mask.rank() - 1)};
  return result;
}

absl::Status CheckPadding(const TensorView& lengths, const TensorView& key_mask, int64_t batch,
                          int64_t keys) {
  if (lengths.present()) {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckAbsent("masks.key_mask", key_mask, "masks.lengths already says which keys are valid"));
    ATTNSERVE_RETURN_IF_ERROR(CheckTensor("masks.lengths", lengths, DType::kI64, {batch}, "[B]"));
    return CheckRange("masks.lengths", lengths, 0, keys, true);
  }
  if (key_mask.present()) {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckTensor("masks.key_mask", key_mask, DType::kBool, {batch, keys}, "[B, S]"));
    return CheckBools("masks.key_mask", key_mask);
  }
  return absl::OkStatus();
}

absl::Status CheckDropout(const DropoutOptions& dropout) {
  if (dropout.p >= 0.0f && dropout.p < 1.0f) return absl::OkStatus();
  return BadOption("dropout.p", absl::StrCat("is ", dropout.p, "; expected 0 <= p < 1"));
}

absl::Status CheckScores(std::string_view field, int64_t batch, int64_t queries, int64_t keys,
                         int64_t heads, int64_t limit) {
  const int64_t scores =
      SaturatingProduct(SaturatingProduct(batch, queries), SaturatingProduct(keys, heads));
  if (scores <= limit) return absl::OkStatus();
  return TooLarge(field, absl::StrCat("needs B * T * S * H = ", batch, " * ", queries, " * ", keys,
                                      " * ", heads, " scores; a call may have at most ", limit,
                                      ": send fewer sequences, or tokens in several calls"));
}

DType StageType(Stage stage, DType dtype) { return stage == Stage::kLse ? DType::kF32 : dtype; }

Shape StageShape(Stage stage, int64_t batch, int64_t heads, int64_t queries, int64_t keys,
                 int64_t value_head_size) {
  switch (stage) {
    case Stage::kLse:
      return {batch, heads, queries};
    case Stage::kContext:
      return {batch, heads, queries, value_head_size};
    default:
      return {batch, heads, queries, keys};
  }
}

int64_t StageBytes(absl::Span<const Stage> stages, DType dtype, int64_t batch, int64_t heads,
                   int64_t queries, int64_t keys, int64_t value_head_size) {
  int64_t total = 0;
  for (const Stage stage : stages) {
    int64_t bytes = static_cast<int64_t>(ElementSize(StageType(stage, dtype)));
    for (const int64_t size : StageShape(stage, batch, heads, queries, keys, value_head_size)) {
      bytes = SaturatingProduct(bytes, size);
    }
    total = std::min(total + bytes, int64_t{1} << 62);
  }
  return total;
}

absl::Status CheckReplyBytes(int64_t stage_bytes, int64_t other_bytes, const EngineLimits& limits) {
  constexpr char kFewerStages[] = "ask for fewer stages or send fewer tokens";
  if (stage_bytes > limits.max_stage_bytes) {
    return ResponseTooLarge("the stages", stage_bytes, limits.max_stage_bytes, kFewerStages);
  }
  if (other_bytes > limits.max_reply_bytes - stage_bytes) {
    return ResponseTooLarge("all tensors together", stage_bytes + other_bytes,
                            limits.max_reply_bytes,
                            stage_bytes > 0 ? kFewerStages : "send fewer tokens");
  }
  return absl::OkStatus();
}

absl::Status CheckStages(absl::Span<const Stage> stages) {
  for (size_t i = 0; i < stages.size(); ++i) {
    if (std::find(stages.begin(), stages.begin() + static_cast<std::ptrdiff_t>(i), stages[i]) !=
        stages.begin() + static_cast<std::ptrdiff_t>(i)) {
      return BadOption("stages", absl::StrCat("entry ", i, " repeats an earlier one"));
    }
  }
  return absl::OkStatus();
}

}  // namespace attnserve
