#include <cmath>

#include "absl/strings/str_cat.h"
#include "lib/model/hugging_face_families.h"
#include "lib/model/model.h"

namespace attnserve::hugging_face {
namespace {

constexpr int64_t kDefaultPositions = 1024;

// GPT-2 has names of its own beside those that all models share.
const char* EitherKey(const ConfigReader& config, const char* own, const char* common) {
  return config.Has(own) || !config.Has(common) ? own : common;
}

LayerSpec ReadSpec(ConfigReader& config) {
  LayerSpec spec;
  spec.kind = LayerKind::kSelfAttention;
  spec.input_size = config.Size(EitherKey(config, "n_embd", "hidden_size"), kMaxWidth);
  spec.output_size = spec.input_size;
  spec.head_count = config.Size(EitherKey(config, "n_head", "num_attention_heads"), kMaxHeads);
  spec.kv_head_count = spec.head_count;
  if (spec.input_size % spec.head_count != 0) {
    config.Fail(
        absl::StrCat("n_embd ", spec.input_size, " is not divisible by n_head ", spec.head_count));
  }
  spec.key_head_size = spec.input_size / spec.head_count;
  spec.value_head_size = spec.key_head_size;
  spec.query_bias = spec.key_bias = spec.value_bias = true;
  spec.output_projection = true;
  spec.output_bias = true;
  spec.attention.causal = true;
  return spec;
}

WeightSource Part(const std::string& tensor, int64_t part, int64_t parts, int64_t size) {
  return {tensor, WeightSource::Layout::kInOut, part * size, parts * size};
}

LayerSources Tensors(const std::string& scope, int64_t size) {
  LayerSources sources;
  sources.query = Part(scope + "c_attn.weight", 0, 3, size);
  sources.key = Part(scope + "c_attn.weight", 1, 3, size);
  sources.value = Part(scope + "c_attn.weight", 2, 3, size);
  sources.output = Part(scope + "c_proj.weight", 0, 1, size);
  sources.query_bias = Part(scope + "c_attn.bias", 0, 3, size);
  sources.key_bias = Part(scope + "c_attn.bias", 1, 3, size);
  sources.value_bias = Part(scope + "c_attn.bias", 2, 3, size);
  sources.output_bias = Part(scope + "c_proj.bias", 0, 1, size);
  return sources;
}

}  // namespace

Family DescribeGpt2(absl::Span<const std::string> names, ConfigReader& config) {
  const LayerSpec spec = ReadSpec(config);
  const int64_t layers = config.Size(EitherKey(config, "n_layer", "num_hidden_layers"), kMaxLayers);
  const bool scale_by_size = config.FlagOr("scale_attn_weights", true);
  const bool scale_by_layer = config.FlagOr("scale_attn_by_inverse_layer_idx", false);
  const std::string prefix =
      FindPrefix(names, {"transformer.", ""}, "h.0.attn.c_attn.weight", config);

  Family family;
  family.model.format = "gpt2";
  family.model.max_tokens =
      config.SizeOr(EitherKey(config, "n_positions", "max_position_embeddings"), kMaxPositions,
                    kDefaultPositions);
  family.ignored_endings = {".attn.bias", ".attn.masked_bias"};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string scope = absl::StrCat(prefix, "h.", layer, ".attn.");
    double scale = 1.0;
    if (scale_by_size) scale /= std::sqrt(static_cast<double>(spec.key_head_size));
    if (scale_by_layer) scale /= static_cast<double>(layer + 1);
    LayerSpec& added = family.model.layers.emplace_back(spec);
    added.attention.scale = static_cast<float>(scale);
    family.model.sources.push_back(Tensors(scope, spec.input_size));
    family.scopes.push_back(scope);
  }
  return family;
}

}  // namespace attnserve::hugging_face
