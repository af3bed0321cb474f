#include "lib/model/hugging_face.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/model/hugging_face_config.h"
#include "lib/model/hugging_face_families.h"
#include "lib/model/json_text.h"
#include "lib/model/weight_loader.h"

namespace attnserve {
namespace hugging_face {
namespace {

using nlohmann::json;

// Keys with attention in their names that do not change its result: dropout while training, and
// which implementation computes it.
constexpr const char* kHarmlessKeys[] = {
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "output_attentions",
    "reorder_and_upcast_attn",
};

void RefuseForeignCode(ConfigReader& config) {
  const json* map = config.Object("auto_map");
  if (map == nullptr) return;
  for (const auto& [key, value] : map->items()) {
    if (absl::StartsWith(key, "AutoModel")) {
      config.Fail(absl::StrCat("auto_map has ", Quoted(key), ": the checkpoint brings code of its ",
                               "own, which may change attention; that is not supported"));
    }
  }
}

void RefuseQuantization(ConfigReader& config) {
  const json* quantization = config.Object("quantization_config");
  if (quantization == nullptr) return;
  ConfigReader reader(*quantization, "quantization_config.");
  config.Fail(absl::StrCat("quantization_config is set, quant_method ",
                           Quoted(reader.TextOr("quant_method", "")),
                           "; quantised checkpoints are not supported, only F32, F16 and BF16"));
}

Family Describe(absl::Span<const std::string> names, ConfigReader& config) {
  const std::string type = config.TextOr("model_type", "");
  if (type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3") {
    return DescribeLlamaFamily(type, names, config);
  }
  if (type == "gpt2") return DescribeGpt2(names, config);
  if (type == "bert") return DescribeBert(names, config);
  config.Fail(absl::StrCat("model_type is ", type.empty() ? "missing" : Quoted(type),
                           "; supported are llama, mistral, qwen2, qwen3, gpt2 and bert"));
  return {};
}

}  // namespace

std::string FindPrefix(absl::Span<const std::string> names,
                       absl::Span<const std::string_view> prefixes, std::string_view name,
                       ConfigReader& config) {
  std::string tried;
  for (const std::string_view prefix : prefixes) {
    const std::string full = absl::StrCat(std::string(prefix), std::string(name));
    if (std::binary_search(names.begin(), names.end(), full)) return std::string(prefix);
    absl::StrAppend(&tried, tried.empty() ? "" : " nor ", Quoted(full));
  }
  config.Fail(
      absl::StrCat("the checkpoint has neither tensor ", tried, ": it does not fit model_type"));
  return "";
}

}  // namespace hugging_face

absl::StatusOr<ModelDescription> DescribeHuggingFaceModel(
    std::string_view config_text, absl::Span<const std::string> tensor_names) {
  ATTNSERVE_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJsonObject(config_text));
  ConfigReader config(document, "");
  hugging_face::RefuseQuantization(config);
  hugging_face::RefuseForeignCode(config);
  hugging_face::Family family = hugging_face::Describe(tensor_names, config);
  for (const char* key : hugging_face::kHarmlessKeys) config.Ignore(key);
  config.RefuseUnread(/*attention_only=*/true);
  ATTNSERVE_RETURN_IF_ERROR(config.status());
  for (size_t i = 0; i < family.model.layers.size(); ++i) {
    ATTNSERVE_RETURN_IF_ERROR(
        CompleteLayerSpec(absl::StrCat("layers[", i, "]"), &family.model.layers[i]));
  }
  ATTNSERVE_RETURN_IF_ERROR(RefuseUnusedTensors(tensor_names, family.scopes, family.ignored_endings,
                                                family.model.sources));
  return std::move(family.model);
}

}  // namespace attnserve
