#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/attention/field_path.h"
#include "lib/attention/layer_spec.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"

namespace attnserve {
namespace {

// Options within these bounds overflow nowhere; no model in use comes near them.
constexpr double kLargest = 1e30, kSmallestPositive = 1e-30;
constexpr double kLargestFloat = std::numeric_limits<float>::max();
constexpr double kLargestScoreFactor = 1e6;  // what multiplies scores, distances, or rotated heads

absl::Status CheckMagnitude(std::string_view field, double value, double largest = kLargest) {
  if (std::fabs(value) <= largest) return absl::OkStatus();
  return BadOption(field, absl::StrCat("is ", value, "; a finite number from ", -largest, " to ",
                                       largest, " is required"));
}

absl::Status CheckAbove(std::string_view field, double value, double bound) {
  ATTNSERVE_RETURN_IF_ERROR(CheckMagnitude(field, value));
  if (value > bound) return absl::OkStatus();
  return BadOption(field, absl::StrCat("is ", value, "; it must be above ", bound));
}

absl::Status CheckPositive(std::string_view field, double value, double largest = kLargest) {
  ATTNSERVE_RETURN_IF_ERROR(CheckMagnitude(field, value, largest));
  if (value >= kSmallestPositive) return absl::OkStatus();
  return BadOption(
      field, absl::StrCat("is ", value, "; it must be above 0, at least ", kSmallestPositive));
}

absl::Status CheckAtLeast(std::string_view field, double value, double bound) {
  ATTNSERVE_RETURN_IF_ERROR(CheckMagnitude(field, value));
  if (value >= bound) return absl::OkStatus();
  return BadOption(field, absl::StrCat("is ", value, "; it must be at least ", bound));
}

absl::Status CheckCount(std::string_view field, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return BadOption(field, absl::StrCat("is ", value, "; it must be at least ", least));
}

// `values` is empty or has `count` elements, none larger than `largest`.
absl::Status CheckValues(std::string_view field, absl::Span<const float> values, int64_t count,
                         std::string_view count_name, double largest = kLargestFloat) {
  if (!values.empty() && static_cast<int64_t>(values.size()) != count) {
    return BadShape(field, absl::StrCat("has ", values.size(), " elements, expected ",
                                        std::string(count_name), " = ", count, " or none"));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckMagnitude(absl::StrCat(std::string(field), "[", i, "]"), values[i], largest));
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(std::string_view field, const Window& window) {
  for (const auto& [name, side] : {std::pair("left", window.left), {"right", window.right}}) {
    if (side < -1) {
      return BadOption(
          FieldPath(field, name),
          absl::StrCat("is ", side, "; a window reaches 0 or more keys, -1 means unbounded"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHeadNorm(std::string_view field, int64_t key_head_size, const HeadNorm& norm) {
  if (norm.kind == HeadNorm::Kind::kNone) {
    if (norm.weight.empty() && norm.bias.empty()) return absl::OkStatus();
    return BadOption(FieldPath(field, "kind"), "is unset but there is a weight or a bias");
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckPositive(FieldPath(field, "epsilon"), norm.epsilon));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckValues(FieldPath(field, "weight"), norm.weight, key_head_size, "key_head_size"));
  if (norm.kind == HeadNorm::Kind::kRms && !norm.bias.empty()) {
    return BadOption(FieldPath(field, "bias"), "is set; only layer normalisation has a bias");
  }
  return CheckValues(FieldPath(field, "bias"), norm.bias, key_head_size, "key_head_size");
}

// Checks one kind of RotaryPosition::scaling.
struct ScalingCheck {
  std::string field;  // of the rotary position
  double theta;

  absl::Status operator()(const std::monostate&) const { return absl::OkStatus(); }
  absl::Status operator()(const LinearScaling& scaling) const {
    return CheckAtLeast(FieldPath(field, "linear.factor"), scaling.factor, 1.0);
  }
  absl::Status operator()(const DynamicNtkScaling& scaling) const {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckAtLeast(FieldPath(field, "dynamic_ntk.factor"), scaling.factor, 1.0));
    return CheckCount(FieldPath(field, "dynamic_ntk.original_max_tokens"),
                      scaling.original_max_tokens, 1);
  }
  absl::Status operator()(const YarnScaling& scaling) const {
    ATTNSERVE_RETURN_IF_ERROR(CheckAtLeast(FieldPath(field, "yarn.factor"), scaling.factor, 1.0));
    ATTNSERVE_RETURN_IF_ERROR(
        CheckCount(FieldPath(field, "yarn.original_max_tokens"), scaling.original_max_tokens, 1));
    ATTNSERVE_RETURN_IF_ERROR(CheckPositive(FieldPath(field, "yarn.beta_slow"), scaling.beta_slow));
    ATTNSERVE_RETURN_IF_ERROR(
        CheckAtLeast(FieldPath(field, "yarn.beta_fast"), scaling.beta_fast, scaling.beta_slow));
    if (scaling.attention_factor.has_value()) {
      ATTNSERVE_RETURN_IF_ERROR(CheckPositive(FieldPath(field, "yarn.attention_factor"),
                                              *scaling.attention_factor, kLargestScoreFactor));
    }
    // The ramp divides by ln(theta).
    return CheckAbove(FieldPath(field, "theta"), theta, 1.0);
  }
  absl::Status operator()(const Llama3Scaling& scaling) const {
    ATTNSERVE_RETURN_IF_ERROR(CheckAtLeast(FieldPath(field, "llama3.factor"), scaling.factor, 1.0));
    ATTNSERVE_RETURN_IF_ERROR(
        CheckPositive(FieldPath(field, "llama3.low_freq_factor"), scaling.low_freq_factor));
    ATTNSERVE_RETURN_IF_ERROR(CheckAbove(FieldPath(field, "llama3.high_freq_factor"),
                                         scaling.high_freq_factor, scaling.low_freq_factor));
    return CheckCount(FieldPath(field, "llama3.original_max_tokens"), scaling.original_max_tokens,
                      1);
  }
};

absl::Status CheckRotary(std::string_view field, int64_t key_head_size,
                         const RotaryPosition& rotary) {
  ATTNSERVE_RETURN_IF_ERROR(CheckPositive(FieldPath(field, "theta"), rotary.theta));
  const std::string dimension_field = FieldPath(field, "dimension");
  const int64_t dimension = rotary.dimension == 0 ? key_head_size : rotary.dimension;
  if (dimension < 0 || dimension > key_head_size) {
    return BadOption(dimension_field,
                     absl::StrCat("is ", dimension, "; it must be even and from 2 to key_head_size",
                                  " = ", key_head_size));
  }
  if (dimension % 2 != 0) {
    return BadOption(
        dimension_field,
        absl::StrCat(rotary.dimension == 0 ? "is unset and so key_head_size = " : "is ", dimension,
                     "; rotation works on pairs, it must be even"));
  }
  return std::visit(ScalingCheck{std::string(field), rotary.theta}, rotary.scaling);
}

// Checks one kind of AttentionOptions::position.
struct PositionCheck {
  std::string field;  // of the options
  int64_t head_count;
  int64_t key_head_size;
  LayerKind kind;

  absl::Status operator()(const std::monostate&) const { return absl::OkStatus(); }
  absl::Status operator()(const SinusoidalPosition& sinusoidal) const {
    if (kind == LayerKind::kCoreAttention) {
      return BadOption(FieldPath(field, "sinusoidal"),
                       "is set; it is added to x, which core attention does not have");
    }
    return CheckPositive(FieldPath(field, "sinusoidal.base"), sinusoidal.base);
  }
  absl::Status operator()(const RotaryPosition& rotary) const {
    return CheckRotary(FieldPath(field, "rotary"), key_head_size, rotary);
  }
  absl::Status operator()(const AlibiPosition& alibi) const {
    return CheckValues(FieldPath(field, "alibi.slopes"), alibi.slopes, head_count, "head_count",
                       kLargestScoreFactor);
  }
};

std::vector<float> PowerOfTwoSlopes(int64_t head_count, int64_t step, int64_t take) {
  std::vector<float> slopes;
  for (int64_t i = 0; i < take; ++i) {
    const double exponent =
        -8.0 * static_cast<double>(i * step + 1) / static_cast<double>(head_count);
    slopes.push_back(static_cast<float>(std::exp2(exponent)));
  }
  return slopes;
}

}  // namespace

absl::Status CheckAttentionOptions(std::string_view field, int64_t head_count,
                                   int64_t key_head_size, LayerKind kind,
                                   const AttentionOptions& options) {
  ATTNSERVE_RETURN_IF_ERROR(CheckWindow(FieldPath(field, "window"), options.window));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckCount(FieldPath(field, "sink_token_count"), options.sink_token_count, 0));
  if (options.scale.has_value()) {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckMagnitude(FieldPath(field, "scale"), *options.scale, kLargestScoreFactor));
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckAtLeast(FieldPath(field, "softcap"), options.softcap, 0.0));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckValues(FieldPath(field, "sink_logits"), options.sink_logits, head_count, "head_count"));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckHeadNorm(FieldPath(field, "query_norm"), key_head_size, options.query_norm));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckHeadNorm(FieldPath(field, "key_norm"), key_head_size, options.key_norm));
  return std::visit(PositionCheck{std::string(field), head_count, key_head_size, kind},
                    options.position);
}

float ScoreScale(const AttentionOptions& options, int64_t key_head_size) {
  return options.scale.value_or(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(key_head_size))));
}

std::vector<float> AlibiSlopes(int64_t head_count) {
  int64_t power = 1;
  while (power * 2 <= head_count) power *= 2;
  std::vector<float> slopes = PowerOfTwoSlopes(power, 1, power);
  const std::vector<float> between = PowerOfTwoSlopes(2 * power, 2, head_count - power);
  slopes.insert(slopes.end(), between.begin(), between.end());
  return slopes;
}

}  // namespace attnserve
