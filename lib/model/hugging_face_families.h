// The model types of hugging_face.h, one function for those that are alike.
#ifndef ATTNSERVE_LIB_MODEL_HUGGING_FACE_FAMILIES_H_
#define ATTNSERVE_LIB_MODEL_HUGGING_FACE_FAMILIES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "lib/attention/layer_spec.h"
#include "lib/model/hugging_face_config.h"
#include "lib/model/model_description.h"

namespace attnserve::hugging_face {

// Longest sequence a configuration may claim: far above any model, and exact in a double.
inline constexpr int64_t kMaxPositions = int64_t{1} << 40;

// What a family's function finds out. Specifications are not completed yet.
struct Family {
  ModelDescription model;
  // Beginnings of the names of all tensors of attention layers.
  std::vector<std::string> scopes;
  // Endings of names in a scope that are no weights (buffers of old checkpoints), or not ours.
  std::vector<std::string> ignored_endings;
};

// Problems go to config.status(); the result is of use only if there are none.
// `model_type` is llama, mistral, qwen2 or qwen3.
Family DescribeLlamaFamily(const std::string& model_type, absl::Span<const std::string> names,
                           ConfigReader& config);
Family DescribeGpt2(absl::Span<const std::string> names, ConfigReader& config);
Family DescribeBert(absl::Span<const std::string> names, ConfigReader& config);

// Rotary positions, and the longest sequence they make possible.
struct Rotary {
  RotaryPosition position;
  int64_t max_tokens = 0;
};
// Reads rope_theta, rope_scaling or rope_parameters, and partial_rotary_factor.
Rotary ReadRotary(int64_t head_size, int64_t max_positions, ConfigReader& config);

// The first of `prefixes` for which `names` (sorted) has the tensor prefix + `name`.
std::string FindPrefix(absl::Span<const std::string> names,
                       absl::Span<const std::string_view> prefixes, std::string_view name,
                       ConfigReader& config);

// All outputs of a Linear's matrix or bias.
inline WeightSource Whole(std::string tensor, int64_t outputs) {
  return {std::move(tensor), WeightSource::Layout::kOutIn, 0, outputs};
}

}  // namespace attnserve::hugging_face

#endif  // ATTNSERVE_LIB_MODEL_HUGGING_FACE_FAMILIES_H_
