// Checks of a call's tensors against what the layer expects. Errors name the field and both shapes.
#ifndef ATTNSERVE_LIB_ENGINE_CHECKS_H_
#define ATTNSERVE_LIB_ENGINE_CHECKS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/attention/layer_spec.h"
#include "lib/attention/sequence.h"
#include "lib/base/tensor.h"
#include "lib/engine/call.h"
#include "lib/engine/engine.h"

namespace attnserve {

// Size of a dimension that may be anything.
inline constexpr int64_t kAnySize = -1;

// Largest position a caller may give: exact in float64 products with any frequency.
inline constexpr int64_t kMaxPosition = int64_t{1} << 40;

// `tensor` is there, of type `dtype`, and has the expected sizes. BAD_SHAPE, BAD_DTYPE. `meaning`
// names the dimensions, for example "[B, T, input_size]".
absl::Status CheckTensor(std::string_view field, const TensorView& tensor, DType dtype,
                         absl::Span<const int64_t> sizes, std::string_view meaning);

// `tensor` is not there. BAD_OPTION with `why`.
absl::Status CheckAbsent(std::string_view field, const TensorView& tensor, std::string_view why);

// Every byte of a BOOL tensor is 0 or 1. BAD_MASK.
absl::Status CheckBools(std::string_view field, const TensorView& tensor);

// Every element of an I64 tensor is in [least, most]. BAD_MASK for masks, BAD_OPTION for others.
absl::Status CheckRange(std::string_view field, const TensorView& tensor, int64_t least,
                        int64_t most, bool is_mask);

// An attention mask's type (BOOL, or `dtype`) and contents (0 or 1; no NaN). BAD_DTYPE, BAD_MASK.
absl::Status CheckMaskContents(std::string_view field, const TensorView& mask, DType dtype);

// Strides of an attention mask broadcast from the right to [batch, heads, queries, keys].
struct BroadcastMask {
  AttentionMaskView view;    // of batch row 0; data null: no mask
  int64_t batch_stride = 0;  // elements

  AttentionMaskView Row(int64_t batch_row) const;
};

// BAD_MASK if the shape does not broadcast. An absent mask gives an absent view.
absl::StatusOr<BroadcastMask> ResolveMask(std::string_view field, const TensorView& mask,
                                          int64_t batch, int64_t heads, int64_t queries,
                                          int64_t keys);

// lengths and key_mask of a call over `batch` sequences of `keys` keys. BAD_OPTION if both are
// there.
absl::Status CheckPadding(const TensorView& lengths, const TensorView& key_mask, int64_t batch,
                          int64_t keys);

// 0 <= p < 1. BAD_OPTION.
absl::Status CheckDropout(const DropoutOptions& dropout);

// batch * queries * keys * heads is at most `limit`. TOO_LARGE; `field` has the queries.
absl::Status CheckScores(std::string_view field, int64_t batch, int64_t queries, int64_t keys,
                         int64_t heads, int64_t limit);

// Bytes the stages of one layer take: for RESPONSE_TOO_LARGE. `value_head_size` is d_v. Saturates.
int64_t StageBytes(absl::Span<const Stage> stages, DType dtype, int64_t batch, int64_t heads,
                   int64_t queries, int64_t keys, int64_t value_head_size);

// A reply's stages, and with them its other tensors, take no more bytes than they may.
// RESPONSE_TOO_LARGE.
absl::Status CheckReplyBytes(int64_t stage_bytes, int64_t other_bytes, const EngineLimits& limits);

// Type a stage is returned in: `dtype`, but F32 for LSE.
DType StageType(Stage stage, DType dtype);

// Shape of a stage.
Shape StageShape(Stage stage, int64_t batch, int64_t heads, int64_t queries, int64_t keys,
                 int64_t value_head_size);

// Each stage is asked for at most once. BAD_OPTION.
absl::Status CheckStages(absl::Span<const Stage> stages);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_CHECKS_H_
