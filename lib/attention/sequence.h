// One sequence on its way through one layer: what goes in, what masks it, what comes out.
#ifndef ATTNSERVE_LIB_ATTENTION_SEQUENCE_H_
#define ATTNSERVE_LIB_ATTENTION_SEQUENCE_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "lib/base/element_type.h"
#include "lib/base/tensor.h"

namespace attnserve {

// The caller's mask for one sequence: element (head, query, key) lies at head * head_stride +
// query * query_stride + key * key_stride; a stride of 0 broadcasts. Keys from key_count on are
// masked, unless key_stride is 0. BOOL: true = attend. Float: added; at or below the type's lowest
// finite value masks. Holds no NaN (checked before).
struct AttentionMaskView {
  DType dtype = DType::kBool;
  const void* data = nullptr;  // null: no mask
  int64_t head_stride = 0;
  int64_t query_stride = 0;
  int64_t key_stride = 0;
  int64_t key_count = 0;
};

// All that masks one sequence beside the layer's own options. A place is attended only if every
// mask allows it.
struct SequenceMasks {
  AttentionMaskView attention_mask;
  int64_t valid_keys = -1;             // keys from here on are masked; -1: none
  const uint8_t* key_mask = nullptr;   // [S] 1 = attend; null: none
  const uint8_t* tree_mask = nullptr;  // [N, N] among the new tokens, 1 = attend; null: none
  // Query i is at causal index causal_offset + i: it attends key j only if j <= causal_offset + i.
  int64_t causal_offset = 0;
  // Query rows that are padding give zeros: rows from valid_queries on (-1: none), and rows whose
  // query_mask is 0 (null: none).
  int64_t valid_queries = -1;
  const uint8_t* query_mask = nullptr;  // [T]
};

// Counter-based dropout of attention weights. Whether a weight is kept depends only on seed, layer,
// batch row, head, query and key.
struct DropoutOptions {
  float p = 0.0f;  // 0: off
  uint64_t seed = 0;
};

// A value inside the attention function that a caller may ask to see; see attention_service.proto.
enum class Stage { kScores, kSoftcapped, kMasked, kWeights, kLse, kContext };

// Where one stage of one sequence goes: [H, T, S], [H, T] for LSE, [H, T, d_v] for context.
struct StageTarget {
  Stage stage = Stage::kScores;
  DType dtype = DType::kF32;
  void* data = nullptr;
};

// Where the output goes. Model layers and token-major core attention: row t at t * row_stride, head
// stride d_v; head-major core attention: [H, T, d_v].
struct OutputTarget {
  DType dtype = DType::kF32;
  void* data = nullptr;
  int64_t token_stride = 0;  // elements
  int64_t head_stride = 0;   // elements; unused with an output projection
};

using StageTargets = absl::InlinedVector<StageTarget, 1>;

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_SEQUENCE_H_
