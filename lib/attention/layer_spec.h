// What an attention layer is. Mirrors proto/attnserve/v1/layer.proto field by field (lib/model
// converts); the comments there give ranges and formulas.
#ifndef ATTNSERVE_LIB_ATTENTION_LAYER_SPEC_H_
#define ATTNSERVE_LIB_ATTENTION_LAYER_SPEC_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/element_type.h"

namespace attnserve {

enum class LayerKind { kSelfAttention, kCrossAttention, kCoreAttention };

// Keys at p - left ... p + right are visible to a query at p; -1: unbounded.
struct Window {
  int64_t left = -1;
  int64_t right = -1;
};

struct HeadNorm {
  enum class Kind { kNone, kRms, kLayer };
  Kind kind = Kind::kNone;
  float epsilon = 1e-6f;
  std::vector<float> weight;  // [d_k] or empty: 1
  std::vector<float> bias;    // [d_k] or empty: 0
};

struct SinusoidalPosition {
  double base = 10000.0;
};

struct LinearScaling {
  double factor = 1.0;
};
struct DynamicNtkScaling {
  double factor = 1.0;
  int64_t original_max_tokens = 0;
};
struct YarnScaling {
  double factor = 1.0;
  int64_t original_max_tokens = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> attention_factor;  // unset: 0.1 ln(factor) + 1
};
struct Llama3Scaling {
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_tokens = 0;
};

struct RotaryPosition {
  enum class Pairing { kHalfSplit, kInterleaved };
  Pairing pairing = Pairing::kHalfSplit;
  double theta = 10000.0;
  int64_t dimension = 0;  // 0: d_k
  std::variant<std::monostate, LinearScaling, DynamicNtkScaling, YarnScaling, Llama3Scaling>
      scaling;
};

struct AlibiPosition {
  std::vector<float> slopes;  // [H] or empty: the paper's sequence
};

struct AttentionOptions {
  bool causal = false;
  Window window;
  int64_t sink_token_count = 0;
  std::optional<float> scale;  // unset: 1 / sqrt(d_k); 0 is a value
  float softcap = 0.0f;
  std::vector<float> sink_logits;  // [H] or empty
  HeadNorm query_norm;
  HeadNorm key_norm;
  std::variant<std::monostate, SinusoidalPosition, RotaryPosition, AlibiPosition> position;
};

struct LayerSpec {
  LayerKind kind = LayerKind::kSelfAttention;
  int64_t input_size = 0;       // d_in; 0 for core attention
  int64_t context_size = 0;     // d_ctx; cross-attention only
  int64_t output_size = 0;      // d_out; for core attention H * d_v
  int64_t head_count = 0;       // H
  int64_t kv_head_count = 0;    // G, divides H
  int64_t key_head_size = 0;    // d_k
  int64_t value_head_size = 0;  // d_v
  bool query_bias = false;
  bool key_bias = false;
  bool value_bias = false;
  bool output_projection = false;
  bool output_bias = false;
  AttentionOptions attention;
  DType cache_dtype = DType::kF32;

  int64_t group_size() const { return head_count / kv_head_count; }  // query heads a kv head
  int64_t query_width() const { return head_count * key_head_size; }
  int64_t key_width() const { return kv_head_count * key_head_size; }
  int64_t value_width() const { return kv_head_count * value_head_size; }
  int64_t context_width() const { return head_count * value_head_size; }

  // Of a new token that attends so many keys; without those of a context.
  int64_t MultiplicationsPerToken(int64_t keys) const {
    const int64_t projections = input_size * (query_width() + key_width() + value_width()) +
                                (output_projection ? context_width() * output_size : 0);
    return projections + keys * (query_width() + context_width());
  }
};

// Limits of a layer's sizes: large enough for any model in use, small enough that no product of
// sizes below overflows.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;  // input, output, H * d_k, H * d_v
inline constexpr int64_t kMaxHeads = int64_t{1} << 12;
inline constexpr int64_t kMaxHeadSize = int64_t{1} << 12;

// Fills what is unset with its default (see layer.proto) and checks the rest. Errors name the field
// below `field` (for example "layers[2]"): BAD_SHAPE, BAD_OPTION, BAD_DTYPE, TOO_LARGE.
absl::Status CompleteLayerSpec(std::string_view field, LayerSpec* spec);

// The same for the attention function of a call that brings its own q, k, v, with H = head_count,
// G = kv_head_count and d_k = key_head_size already known and positive.
absl::Status CheckAttentionOptions(std::string_view field, int64_t head_count,
                                   int64_t key_head_size, LayerKind kind,
                                   const AttentionOptions& options);

// The factor of the scores: the option's, or 1 / sqrt(d_k).
float ScoreScale(const AttentionOptions& options, int64_t key_head_size);

// ALiBi slopes for `head_count` heads (Press et al. 2021, section 3; for a number that is no power
// of two, the authors' interleaved sequence).
std::vector<float> AlibiSlopes(int64_t head_count);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_LAYER_SPEC_H_
