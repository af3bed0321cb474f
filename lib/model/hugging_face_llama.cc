#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/model/hugging_face_families.h"
#include "lib/model/json_text.h"
#include "lib/model/model.h"

namespace attnserve::hugging_face {
namespace {

enum class WindowKeys { kNone, kMistral, kQwen };

// Where the model types differ. Numbers are the defaults of transformers for missing keys.
struct Variant {
  const char* model_type;
  int64_t kv_heads;   // 0: as many as query heads
  int64_t head_size;  // 0: hidden_size / num_attention_heads
  int64_t max_positions;
  bool qkv_bias;
  bool has_attention_bias_key;
  bool head_norm;
  WindowKeys window;
};

constexpr Variant kVariants[] = {
    {"llama", 0, 0, 2048, false, true, false, WindowKeys::kNone},
    {"mistral", 8, 0, 131072, false, false, false, WindowKeys::kMistral},
    {"qwen2", 32, 0, 32768, true, false, false, WindowKeys::kQwen},
    {"qwen3", 32, 128, 32768, false, true, true, WindowKeys::kQwen},
};

constexpr int64_t kDefaultWindow = 4096;
constexpr int64_t kDefaultMaxWindowLayers = 28;
constexpr char kSliding[] = "sliding_attention";
constexpr char kFull[] = "full_attention";

int64_t ReadHeadSize(const Variant& variant, int64_t hidden, int64_t heads, ConfigReader& config) {
  const int64_t given = config.SizeOr("head_dim", kMaxHeadSize, variant.head_size);
  if (given != 0) return given;
  if (hidden % heads != 0) {
    config.Fail(absl::StrCat("hidden_size ", hidden, " is not divisible by num_attention_heads ",
                             heads, " and there is no head_dim"));
  }
  return std::max<int64_t>(hidden / heads, 1);
}

LayerSpec ReadSizes(const Variant& variant, ConfigReader& config) {
  LayerSpec spec;
  spec.kind = LayerKind::kSelfAttention;
  spec.input_size = config.Size("hidden_size", kMaxWidth);
  spec.output_size = spec.input_size;
  spec.head_count = config.Size("num_attention_heads", kMaxHeads);
  const bool missing = !config.Contains("num_key_value_heads") && variant.kv_heads != 0;
  spec.kv_head_count =
      config.SizeOr("num_key_value_heads", kMaxHeads, missing ? variant.kv_heads : spec.head_count);
  if (spec.head_count % spec.kv_head_count != 0) {
    config.Fail(absl::StrCat("num_attention_heads ", spec.head_count,
                             " is not a multiple of num_key_value_heads ", spec.kv_head_count,
                             missing ? ", the default of this model_type" : ""));
  }
  spec.key_head_size = ReadHeadSize(variant, spec.input_size, spec.head_count, config);
  spec.value_head_size = spec.key_head_size;
  return spec;
}

// The window in tokens, the token itself included; 0: none.
int64_t ReadWindow(const Variant& variant, ConfigReader& config) {
  if (variant.window == WindowKeys::kNone) return 0;
  if (variant.window == WindowKeys::kQwen && !config.FlagOr("use_sliding_window", false)) {
    config.Ignore("sliding_window");
    return 0;
  }
  const int64_t missing = config.Contains("sliding_window") ? 0 : kDefaultWindow;
  return config.SizeOr("sliding_window", kMaxPositions, missing);
}

// For each layer whether the window applies to it.
std::vector<bool> ReadLayerTypes(const Variant& variant, int64_t layers, int64_t window,
                                 ConfigReader& config) {
  int64_t first_sliding = window > 0 ? 0 : layers;
  if (variant.window == WindowKeys::kQwen) {
    const int64_t full_layers = config.CountOr("max_window_layers", kDefaultMaxWindowLayers);
    if (window > 0) first_sliding = std::min(full_layers, layers);
  }
  std::vector<bool> sliding;
  for (int64_t layer = 0; layer < layers; ++layer) sliding.push_back(layer >= first_sliding);

  const std::vector<std::string> types = config.Texts("layer_types");
  if (types.empty()) return sliding;
  if (static_cast<int64_t>(types.size()) != layers) {
    config.Fail(
        absl::StrCat("layer_types has ", types.size(), " entries, num_hidden_layers is ", layers));
    return sliding;
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != kSliding && types[i] != kFull) {
      config.Fail(absl::StrCat("layer_types[", i, "] is ", Quoted(types[i]), "; supported are ",
                               kSliding, " and ", kFull));
    }
    const bool wanted = types[i] == kSliding;
    if (wanted == sliding[i]) continue;
    if (variant.window != WindowKeys::kQwen || window == 0) {
      config.Fail(absl::StrCat("layer_types[", i, "] is ", Quoted(types[i]), ", but a ",
                               variant.model_type, " model with ",
                               window > 0 ? "a sliding window" : "no sliding window",
                               " has no such layer"));
    }
    sliding[i] = wanted;
  }
  return sliding;
}

LayerSources Tensors(const std::string& scope, const LayerSpec& spec) {
  LayerSources sources;
  sources.query = Whole(scope + "q_proj.weight", spec.query_width());
  sources.key = Whole(scope + "k_proj.weight", spec.key_width());
  sources.value = Whole(scope + "v_proj.weight", spec.value_width());
  sources.output = Whole(scope + "o_proj.weight", spec.output_size);
  if (spec.query_bias) sources.query_bias = Whole(scope + "q_proj.bias", spec.query_width());
  if (spec.key_bias) sources.key_bias = Whole(scope + "k_proj.bias", spec.key_width());
  if (spec.value_bias) sources.value_bias = Whole(scope + "v_proj.bias", spec.value_width());
  if (spec.output_bias) sources.output_bias = Whole(scope + "o_proj.bias", spec.output_size);
  if (spec.attention.query_norm.kind != HeadNorm::Kind::kNone) {
    sources.query_norm = scope + "q_norm.weight";
    sources.key_norm = scope + "k_norm.weight";
  }
  return sources;
}

}  // namespace

Family DescribeLlamaFamily(const std::string& model_type, absl::Span<const std::string> names,
                           ConfigReader& config) {
  const Variant& variant =
      *std::find_if(std::begin(kVariants), std::end(kVariants),
                    [&](const Variant& v) { return model_type == v.model_type; });
  LayerSpec spec = ReadSizes(variant, config);
  const int64_t layers = config.Size("num_hidden_layers", kMaxLayers);
  const int64_t max_positions =
      config.SizeOr("max_position_embeddings", kMaxPositions, variant.max_positions);
  const Rotary rotary = ReadRotary(spec.key_head_size, max_positions, config);

  const bool all_biases = variant.has_attention_bias_key && config.FlagOr("attention_bias", false);
  spec.query_bias = spec.key_bias = spec.value_bias = variant.qkv_bias || all_biases;
  spec.output_projection = true;
  spec.output_bias = all_biases;
  spec.attention.causal = true;
  spec.attention.position = rotary.position;
  if (variant.head_norm) {
    spec.attention.query_norm.kind = HeadNorm::Kind::kRms;
    spec.attention.query_norm.epsilon = static_cast<float>(config.NumberOr("rms_norm_eps", 1e-6));
    spec.attention.key_norm = spec.attention.query_norm;
  }
  const int64_t window = ReadWindow(variant, config);
  const std::vector<bool> sliding = ReadLayerTypes(variant, layers, window, config);
  const std::string prefix =
      FindPrefix(names, {"model.", ""}, "layers.0.self_attn.q_proj.weight", config);

  Family family;
  family.model.format = model_type;
  family.model.max_tokens = rotary.max_tokens;
  family.ignored_endings = {".rotary_emb.inv_freq"};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string scope = absl::StrCat(prefix, "layers.", layer, ".self_attn.");
    LayerSpec& added = family.model.layers.emplace_back(spec);
    if (sliding[static_cast<size_t>(layer)]) added.attention.window.left = window - 1;
    family.model.sources.push_back(Tensors(scope, spec));
    family.scopes.push_back(scope);
  }
  return family;
}

}  // namespace attnserve::hugging_face
