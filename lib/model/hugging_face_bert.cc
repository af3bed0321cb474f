#include "absl/strings/str_cat.h"
#include "lib/model/hugging_face_families.h"
#include "lib/model/json_text.h"
#include "lib/model/model.h"

namespace attnserve::hugging_face {
namespace {

constexpr int64_t kDefaultPositions = 512;

LayerSpec ReadSpec(ConfigReader& config) {
  LayerSpec spec;
  spec.kind = LayerKind::kSelfAttention;
  spec.input_size = config.Size("hidden_size", kMaxWidth);
  spec.output_size = spec.input_size;
  spec.head_count = config.Size("num_attention_heads", kMaxHeads);
  spec.kv_head_count = spec.head_count;
  if (spec.input_size % spec.head_count != 0) {
    config.Fail(absl::StrCat("hidden_size ", spec.input_size,
                             " is not divisible by num_attention_heads ", spec.head_count));
  }
  spec.key_head_size = spec.input_size / spec.head_count;
  spec.value_head_size = spec.key_head_size;
  spec.query_bias = spec.key_bias = spec.value_bias = true;
  spec.output_projection = true;
  spec.output_bias = true;
  return spec;
}

void CheckPositions(ConfigReader& config) {
  const std::string type = config.TextOr("position_embedding_type", "absolute");
  if (type != "absolute") {
    config.Fail(
        absl::StrCat("position_embedding_type is ", Quoted(type), "; only absolute is supported"));
  }
}

LayerSources Tensors(const std::string& scope, int64_t size) {
  LayerSources sources;
  sources.query = Whole(scope + "self.query.weight", size);
  sources.key = Whole(scope + "self.key.weight", size);
  sources.value = Whole(scope + "self.value.weight", size);
  sources.output = Whole(scope + "output.dense.weight", size);
  sources.query_bias = Whole(scope + "self.query.bias", size);
  sources.key_bias = Whole(scope + "self.key.bias", size);
  sources.value_bias = Whole(scope + "self.value.bias", size);
  sources.output_bias = Whole(scope + "output.dense.bias", size);
  return sources;
}

}  // namespace

Family DescribeBert(absl::Span<const std::string> names, ConfigReader& config) {
  const LayerSpec spec = ReadSpec(config);
  const int64_t layers = config.Size("num_hidden_layers", kMaxLayers);
  CheckPositions(config);
  config.Ignore("pooler_num_attention_heads");  // never used by transformers
  config.Ignore("pooler_size_per_head");
  const std::string prefix =
      FindPrefix(names, {"bert.", ""}, "encoder.layer.0.attention.self.query.weight", config);

  Family family;
  family.model.format = "bert";
  family.model.max_tokens =
      config.SizeOr("max_position_embeddings", kMaxPositions, kDefaultPositions);
  // The norm behind the residual is the client's.
  family.ignored_endings = {".output.LayerNorm.weight", ".output.LayerNorm.bias",
                            ".output.LayerNorm.gamma", ".output.LayerNorm.beta"};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string scope = absl::StrCat(prefix, "encoder.layer.", layer, ".attention.");
    family.model.layers.push_back(spec);
    family.model.sources.push_back(Tensors(scope, spec.input_size));
    family.scopes.push_back(scope);
  }
  return family;
}

}  // namespace attnserve::hugging_face
