#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/model/hugging_face_families.h"
#include "lib/model/json_text.h"

namespace attnserve::hugging_face {
namespace {

// Far above any use; keeps the product with a length below 2^63.
constexpr double kMaxFactor = 1e6;

double ReadFactor(ConfigReader& scaling) {
  const double factor = scaling.Number("factor");
  if (factor >= 1.0 && factor <= kMaxFactor) return factor;
  scaling.Fail(absl::StrCat("the factor of rotary scaling is ", factor,
                            "; expected a number from 1 to ", kMaxFactor));
  return 1.0;
}

int64_t Stretched(int64_t tokens, double factor) {
  return static_cast<int64_t>(static_cast<double>(tokens) * factor);
}

// m-scale of YaRN as transformers computes it: 0.1 m ln(factor) + 1.
double MagnitudeScale(double factor, double m) {
  return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

// Zero counts as unset, as in transformers.
double NonzeroOr(ConfigReader& scaling, const char* key, double fallback) {
  const double value = scaling.NumberOr(key, fallback);
  return value == 0.0 ? fallback : value;
}

YarnScaling ReadYarn(int64_t max_positions, ConfigReader& scaling) {
  YarnScaling yarn;
  yarn.factor = ReadFactor(scaling);
  yarn.original_max_tokens =
      scaling.SizeOr("original_max_position_embeddings", kMaxPositions, max_positions);
  yarn.beta_fast = NonzeroOr(scaling, "beta_fast", yarn.beta_fast);
  yarn.beta_slow = NonzeroOr(scaling, "beta_slow", yarn.beta_slow);
  if (!scaling.FlagOr("truncate", true)) {
    scaling.Fail("yarn with truncate = false is not supported");
  }
  const double mscale = scaling.NumberOr("mscale", 0.0);
  const double mscale_all = scaling.NumberOr("mscale_all_dim", 0.0);
  if (scaling.Has("attention_factor")) {
    yarn.attention_factor = scaling.Number("attention_factor");
  } else if (mscale != 0.0 && mscale_all != 0.0) {
    yarn.attention_factor =
        MagnitudeScale(yarn.factor, mscale) / MagnitudeScale(yarn.factor, mscale_all);
  }
  return yarn;
}

Llama3Scaling ReadLlama3(ConfigReader& scaling) {
  Llama3Scaling llama3;
  llama3.factor = ReadFactor(scaling);
  llama3.low_freq_factor = scaling.Number("low_freq_factor");
  llama3.high_freq_factor = scaling.Number("high_freq_factor");
  llama3.original_max_tokens = scaling.Size("original_max_position_embeddings", kMaxPositions);
  return llama3;
}

DynamicNtkScaling ReadDynamic(int64_t max_positions, ConfigReader& scaling) {
  const int64_t original =
      scaling.SizeOr("original_max_position_embeddings", kMaxPositions, max_positions);
  if (original != max_positions) {
    scaling.Fail(absl::StrCat("dynamic rotary scaling has original_max_position_embeddings = ",
                              original, ", but max_position_embeddings is ", max_positions,
                              "; transformers uses the latter and so they must be equal"));
  }
  return {ReadFactor(scaling), max_positions};
}

std::string ReadType(bool required, ConfigReader& scaling) {
  const std::string type = scaling.TextOr("rope_type", "");
  const std::string old_type = scaling.TextOr("type", type);
  if (type.empty() && old_type.empty() && required) {
    scaling.Fail("rope_scaling has neither rope_type nor type");
  }
  if (!type.empty() && type != old_type) {
    scaling.Fail(absl::StrCat("rope_type is ", Quoted(type), " and type is ", Quoted(old_type),
                              "; they must be the same"));
  }
  return old_type.empty() ? "default" : old_type;
}

void ReadScaling(const std::string& type, int64_t max_positions, ConfigReader& scaling,
                 Rotary* rotary) {
  rotary->max_tokens = max_positions;
  if (type == "linear") {
    const LinearScaling linear{ReadFactor(scaling)};
    rotary->max_tokens = Stretched(max_positions, linear.factor);
    rotary->position.scaling = linear;
  } else if (type == "dynamic") {
    const DynamicNtkScaling dynamic = ReadDynamic(max_positions, scaling);
    rotary->max_tokens = Stretched(max_positions, dynamic.factor);
    rotary->position.scaling = dynamic;
  } else if (type == "yarn") {
    const YarnScaling yarn = ReadYarn(max_positions, scaling);
    rotary->max_tokens = std::max(max_positions, Stretched(yarn.original_max_tokens, yarn.factor));
    rotary->position.scaling = yarn;
  } else if (type == "llama3") {
    rotary->position.scaling = ReadLlama3(scaling);
  } else if (type != "default") {
    scaling.Fail(absl::StrCat("rope_type is ", Quoted(type),
                              "; supported are default, linear, dynamic, yarn and llama3"));
  }
}

int64_t RotatedSize(int64_t head_size, double part, ConfigReader& config) {
  const int64_t size =
      part > 0.0 && part <= 1.0 ? static_cast<int64_t>(static_cast<double>(head_size) * part) : 0;
  if (size >= 2 && size % 2 == 0) return size;
  config.Fail(absl::StrCat("partial_rotary_factor ", part, " of heads of ", head_size,
                           " elements rotates ", size, "; an even number from 2 on is expected"));
  return 0;
}

}  // namespace

Rotary ReadRotary(int64_t head_size, int64_t max_positions, ConfigReader& config) {
  Rotary rotary;
  double theta = config.NumberOr("rope_theta", 10000.0);
  double part = config.NumberOr("partial_rotary_factor", 1.0);
  const nlohmann::json* parameters = config.Object("rope_parameters");
  const nlohmann::json* scaling_object = config.Object("rope_scaling");
  rotary.max_tokens = max_positions;
  if (parameters != nullptr && scaling_object != nullptr) {
    config.Fail("rope_parameters and rope_scaling are both set; one of them is expected");
  } else if (parameters != nullptr || scaling_object != nullptr) {
    const bool is_old = parameters == nullptr;
    ConfigReader scaling(is_old ? *scaling_object : *parameters,
                         is_old ? "rope_scaling." : "rope_parameters.");
    theta = scaling.NumberOr("rope_theta", theta);
    part = scaling.NumberOr("partial_rotary_factor", part);
    scaling.Ignore("finetuned");
    ReadScaling(ReadType(is_old, scaling), max_positions, scaling, &rotary);
    scaling.RefuseUnread(/*attention_only=*/false);
    if (!scaling.status().ok()) config.Fail(std::string(scaling.status().message()));
  }
  rotary.position.pairing = RotaryPosition::Pairing::kHalfSplit;
  rotary.position.theta = theta;
  rotary.position.dimension = RotatedSize(head_size, part, config);
  return rotary;
}

}  // namespace attnserve::hugging_face
