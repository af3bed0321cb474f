#include "client/attnctl/llama.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/base/tensor.h"
#include "lib/model/safetensors.h"

namespace attnserve::ctl {
namespace {

bool Exists(const std::string& path) { return std::ifstream(path).good(); }

absl::StatusOr<LlamaConfig> ReadConfig(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  const nlohmann::json config = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto bad = [&path](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::string(what)));
  };
  if (!config.is_object()) return bad("is not a JSON object");
  if (config.value("model_type", "") != "llama") {
    return bad("model_type is not \"llama\": this command knows no other feed-forward part");
  }
  LlamaConfig result;
  for (const auto& [name, target] :
       {std::pair<const char*, int64_t*>("hidden_size", &result.hidden_size),
        {"intermediate_size", &result.intermediate_size},
        {"num_hidden_layers", &result.layer_count},
        {"vocab_size", &result.vocab_size},
        {"max_position_embeddings", &result.max_tokens}}) {
    if (!config.contains(name) || !config[name].is_number_integer()) {
      return bad(absl::StrCat("has no number ", name));
    }
    *target = config[name].get<int64_t>();
    constexpr int64_t kMost = int64_t{1} << 24;
    if (*target <= 0 || *target > kMost) return bad(absl::StrCat(name, " is out of range"));
  }
  if (config.value("hidden_act", "silu") != "silu") return bad("hidden_act is not \"silu\"");
  result.rms_norm_eps = config.value("rms_norm_eps", 1e-6f);
  result.tie_word_embeddings = config.value("tie_word_embeddings", false);
  return result;
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
