#include "lib/model/model_config.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attnserve/v1/model_config.pb.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "lib/base/status_macros.h"
#include "lib/model/json_text.h"
#include "lib/model/layer_spec_proto.h"
#include "lib/model/model.h"
#include "lib/model/path_names.h"

namespace attnserve {
namespace {

// Deepest nesting of messages; ModelConfig itself needs 5.
constexpr int kMaxNesting = 16;

// Keeps the first error; without a collector protobuf prints to stderr.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  const std::string& text() const { return text_; }

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (text_.empty()) {
      text_ = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
    }
  }
  void AddWarning(int, google::protobuf::io::ColumnNumber, const std::string&) override {}

 private:
  std::string text_;
};

absl::StatusOr<v1::ModelConfig> Parse(std::string_view text) {
  google::protobuf::TextFormat::Parser parser;
  FirstError error;
  parser.RecordErrorsTo(&error);
  parser.SetRecursionLimit(kMaxNesting);
  v1::ModelConfig config;
  if (!parser.ParseFromString(std::string(text), &config)) {
    return absl::InvalidArgumentError(error.text().empty() ? "is not a ModelConfig in text format"
                                                           : error.text());
  }
  return config;
}

LayerSources Tensors(int64_t layer, const LayerSpec& spec) {
  const std::string scope = absl::StrCat("layers.", layer, ".");
  const auto source = [&scope](bool present, const char* name, int64_t outputs) {
    WeightSource result;
    if (present) result = {scope + name, WeightSource::Layout::kOutIn, 0, outputs};
    return result;
  };
  LayerSources sources;
  sources.query = source(true, "q_proj.weight", spec.query_width());
  sources.key = source(true, "k_proj.weight", spec.key_width());
  sources.value = source(true, "v_proj.weight", spec.value_width());
  sources.output = source(spec.output_projection, "o_proj.weight", spec.output_size);
  sources.query_bias = source(spec.query_bias, "q_proj.bias", spec.query_width());
  sources.key_bias = source(spec.key_bias, "k_proj.bias", spec.key_width());
  sources.value_bias = source(spec.value_bias, "v_proj.bias", spec.value_width());
  sources.output_bias = source(spec.output_bias, "o_proj.bias", spec.output_size);
  return sources;
}

absl::Status SetWeights(const v1::ModelConfig& config, ModelConfigDescription* description) {
  switch (config.weights_case()) {
    case v1::ModelConfig::kSafetensors:
      if (!IsPlainFileName(config.safetensors())) {
        return absl::InvalidArgumentError(
            absl::StrCat("safetensors: is ", Quoted(config.safetensors()),
                         "; expected the name of a file in the same folder"));
      }
      description->safetensors = config.safetensors();
      return absl::OkStatus();
    case v1::ModelConfig::kSeed:
      description->seed = config.seed();
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError("neither safetensors nor seed is set; one is required");
  }
}

}  // namespace

absl::StatusOr<ModelConfigDescription> ParseModelConfig(std::string_view text) {
  ATTNSERVE_ASSIGN_OR_RETURN(const v1::ModelConfig config, Parse(text));
  if (config.layers_size() < 1 || config.layers_size() > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", config.layers_size(), " layers, expected 1 to ", kMaxLayers));
  }
  if (config.max_tokens() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens: is ", config.max_tokens(), "; expected 1 or more, or unset"));
  }
  ModelConfigDescription description;
  ModelDescription& model = description.model;
  model.format = "model.textproto";
  model.max_tokens = config.max_tokens();
  for (int i = 0; i < config.layers_size(); ++i) {
    const std::string field = absl::StrCat("layers[", i, "]");
    absl::StatusOr<LayerSpec> spec = LayerSpecFromProto(config.layers(i), field);
    if (!spec.ok()) return absl::InvalidArgumentError(spec.status().message());
    if (spec->kind == LayerKind::kCoreAttention) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, ".kind: is core attention, which has no weights to serve; sessions describe it"));
    }
    model.sources.push_back(Tensors(i, *spec));
    model.layers.push_back(*std::move(spec));
  }
  ATTNSERVE_RETURN_IF_ERROR(SetWeights(config, &description));
  return description;
}

}  // namespace attnserve
