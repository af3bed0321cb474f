#include "client/attnctl/llama.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/base/tensor.h"
#include "lib/model/safetensors.h"

namespace attnserve::ctl {
namespace {

bool Exists(const std::string& path) { return std::ifstream(path).good(); }

// A field of config.json as T; `otherwise` if it is absent or null, an error if of another type.
template <typename T>
absl::StatusOr<T> Field(const nlohmann::json& config, const char* name, T otherwise) {
  if (!config.contains(name) || config[name].is_null()) return otherwise;
  const nlohmann::json& value = config[name];
  const bool fits = std::is_same_v<T, bool>      ? value.is_boolean()
                    : std::is_same_v<T, int64_t> ? value.is_number_integer()
                    : std::is_same_v<T, double>  ? value.is_number()
                                                 : value.is_string();
  if (!fits) return absl::InvalidArgumentError(absl::StrCat(name, " has the wrong type"));
  return value.get<T>();
}

absl::StatusOr<LlamaConfig> ParseConfig(const nlohmann::json& config) {
  if (!config.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  for (const auto& [name, expected] :
       {std::pair<const char*, std::string>("model_type", "llama"), {"hidden_act", "silu"}}) {
    ATTNSERVE_ASSIGN_OR_RETURN(const std::string value, Field<std::string>(config, name, expected));
    if (value == expected) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not \"", expected, "\": no other feed-forward part is known here"));
  }
  LlamaConfig result;
  ATTNSERVE_ASSIGN_OR_RETURN(result.head_count, Field<int64_t>(config, "num_attention_heads", 0));
  ATTNSERVE_ASSIGN_OR_RETURN(result.kv_head_count,
                             Field<int64_t>(config, "num_key_value_heads", result.head_count));
  ATTNSERVE_ASSIGN_OR_RETURN(result.hidden_size, Field<int64_t>(config, "hidden_size", 0));
  ATTNSERVE_ASSIGN_OR_RETURN(
      result.head_size,
      Field<int64_t>(config, "head_dim",
                     result.head_count > 0 ? result.hidden_size / result.head_count : 0));
  ATTNSERVE_ASSIGN_OR_RETURN(result.intermediate_size,
                             Field<int64_t>(config, "intermediate_size", 0));
  ATTNSERVE_ASSIGN_OR_RETURN(result.layer_count, Field<int64_t>(config, "num_hidden_layers", 0));
  ATTNSERVE_ASSIGN_OR_RETURN(result.vocab_size, Field<int64_t>(config, "vocab_size", 0));
  ATTNSERVE_ASSIGN_OR_RETURN(result.max_tokens,
                             Field<int64_t>(config, "max_position_embeddings", 2048));
  for (const int64_t size :
       {result.head_count, result.kv_head_count, result.head_size, result.hidden_size,
        result.intermediate_size, result.layer_count, result.vocab_size, result.max_tokens}) {
    constexpr int64_t kMost = int64_t{1} << 24;
    if (size <= 0 || size > kMost) {
      return absl::InvalidArgumentError(
          "hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, vocab_size or "
          "another size is missing or out of range");
    }
  }
  if (!config.contains("head_dim") && result.hidden_size % result.head_count != 0) {
    return absl::InvalidArgumentError("hidden_size is no multiple of num_attention_heads");
  }
  if (result.head_count % result.kv_head_count != 0) {
    return absl::InvalidArgumentError("num_attention_heads is no multiple of num_key_value_heads");
  }
  ATTNSERVE_ASSIGN_OR_RETURN(const double eps, Field<double>(config, "rms_norm_eps", 1e-6));
  result.rms_norm_eps = static_cast<float>(eps);
  ATTNSERVE_ASSIGN_OR_RETURN(result.tie_word_embeddings,
                             Field<bool>(config, "tie_word_embeddings", false));
  return result;
}

absl::StatusOr<LlamaConfig> ReadConfig(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  absl::StatusOr<LlamaConfig> config =
      ParseConfig(nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false));
  if (config.ok()) return config;
  return absl::Status(config.status().code(), absl::StrCat(path, ": ", config.status().message()));
}

// A tensor of the expected shape as F32.
absl::StatusOr<Floats> Read(const SafetensorsFile& file, const std::string& name,
                            absl::Span<const int64_t> shape) {
  ATTNSERVE_ASSIGN_OR_RETURN(const LoadedTensor tensor, file.Load(name));
  if (absl::MakeConstSpan(tensor.view.shape) != shape || !IsFloat(tensor.view.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has shape ",
                                                   ShapeToString(tensor.view.shape), "; expected ",
                                                   ShapeToString(shape), " of floats"));
  }
  Floats values(static_cast<size_t>(tensor.view.elements()));
  LoadAsF32(tensor.view.dtype, tensor.view.data, tensor.view.elements(), values.data());
  return values;
}

// y[i] = sum_j w[i, j] x[j], w [rows, columns].
void Multiply(const Floats& w, const float* x, int64_t rows, int64_t columns, float* y) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = w.data() + i * columns;
    float sums[8] = {};
    int64_t j = 0;
    for (; j + 8 <= columns; j += 8) {
      for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += row[j + lane] * x[j + lane];
    }
    float sum = 0.0f;
    for (; j < columns; ++j) sum += row[j] * x[j];
    for (const float lane : sums) sum += lane;
    y[i] = sum;
  }
}

// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).
void RmsNorm(const float* x, const Floats& weight, float eps, float* y) {
  double squares = 0.0;
  for (size_t i = 0; i < weight.size(); ++i) squares += static_cast<double>(x[i]) * x[i];
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(weight.size()) + eps);
  for (size_t i = 0; i < weight.size(); ++i) {
    y[i] = static_cast<float>(x[i] * scale) * weight[i];
  }
}

}  // namespace

absl::StatusOr<Llama> Llama::Load(const std::string& folder) {
  Llama model;
  ATTNSERVE_ASSIGN_OR_RETURN(model.config_, ReadConfig(folder + "/config.json"));
  const std::string index = folder + "/model.safetensors.index.json";
  ATTNSERVE_ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsFile> file,
      SafetensorsFile::Open(Exists(index) ? index : folder + "/model.safetensors"));
  const int64_t d = model.config_.hidden_size, f = model.config_.intermediate_size;
  const int64_t v = model.config_.vocab_size;
  ATTNSERVE_ASSIGN_OR_RETURN(model.embeddings_, Read(*file, "model.embed_tokens.weight", {v, d}));
  ATTNSERVE_ASSIGN_OR_RETURN(model.final_norm_, Read(*file, "model.norm.weight", {d}));
  if (!model.config_.tie_word_embeddings) {
    ATTNSERVE_ASSIGN_OR_RETURN(model.head_, Read(*file, "lm_head.weight", {v, d}));
  }
  for (int64_t i = 0; i < model.config_.layer_count; ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    Layer& layer = model.layers_.emplace_back();
    ATTNSERVE_ASSIGN_OR_RETURN(layer.attention_norm,
                               Read(*file, prefix + "input_layernorm.weight", {d}));
    ATTNSERVE_ASSIGN_OR_RETURN(layer.ffn_norm,
                               Read(*file, prefix + "post_attention_layernorm.weight", {d}));
    ATTNSERVE_ASSIGN_OR_RETURN(layer.gate, Read(*file, prefix + "mlp.gate_proj.weight", {f, d}));
    ATTNSERVE_ASSIGN_OR_RETURN(layer.up, Read(*file, prefix + "mlp.up_proj.weight", {f, d}));
    ATTNSERVE_ASSIGN_OR_RETURN(layer.down, Read(*file, prefix + "mlp.down_proj.weight", {d, f}));
  }
  return model;
}

// x += W_down (silu(W_gate n) * W_up n), n = norm(x) (Shazeer 2020).
void Llama::FeedForward(const Layer& layer, float* x) const {
  const int64_t d = config_.hidden_size, f = config_.intermediate_size;
  Floats normed(static_cast<size_t>(d)), gate(static_cast<size_t>(f)), up(static_cast<size_t>(f));
  RmsNorm(x, layer.ffn_norm, config_.rms_norm_eps, normed.data());
  Multiply(layer.gate, normed.data(), f, d, gate.data());
  Multiply(layer.up, normed.data(), f, d, up.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
  }
  Multiply(layer.down, gate.data(), d, f, normed.data());
  for (int64_t i = 0; i < d; ++i) x[i] += normed[static_cast<size_t>(i)];
}

absl::StatusOr<Floats> Llama::Run(absl::Span<const int> tokens, Attention attention) const {
  const int64_t d = config_.hidden_size, count = static_cast<int64_t>(tokens.size());
  Floats x;
  for (const int token : tokens) {
    const float* row = embeddings_.data() + token * d;
    x.insert(x.end(), row, row + d);
  }
  Floats normed(x.size());
  for (int64_t l = 0; l < config_.layer_count; ++l) {
    const Layer& layer = layers_[static_cast<size_t>(l)];
    for (int64_t t = 0; t < count; ++t) {
      RmsNorm(x.data() + t * d, layer.attention_norm, config_.rms_norm_eps, normed.data() + t * d);
    }
    ATTNSERVE_ASSIGN_OR_RETURN(const Floats attended, attention(l, normed, count));
    if (attended.size() != x.size()) {
      return absl::InternalError(absl::StrCat("layer ", l, " answered ", attended.size(),
                                              " numbers; expected ", x.size()));
    }
    for (size_t i = 0; i < x.size(); ++i) x[i] += attended[i];
    for (int64_t t = 0; t < count; ++t) FeedForward(layer, x.data() + t * d);
  }
  Floats last(static_cast<size_t>(d)), logits(static_cast<size_t>(config_.vocab_size));
  RmsNorm(x.data() + (count - 1) * d, final_norm_, config_.rms_norm_eps, last.data());
  Multiply(head_.empty() ? embeddings_ : head_, last.data(), config_.vocab_size, d, logits.data());
  return logits;
}

}  // namespace attnserve::ctl
