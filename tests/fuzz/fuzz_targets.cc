#include "tests/fuzz/fuzz_targets.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/model/hugging_face.h"
#include "lib/model/layer_spec_proto.h"
#include "lib/model/model_config.h"
#include "lib/model/safetensors_header.h"

namespace attnserve {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "contract broken: %s\n", what);
  std::abort();
}

std::vector<std::string> TensorNames() {
  std::vector<std::string> names;
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      names.push_back(absl::StrCat("model.layers.", layer, ".self_attn.", name, ".weight"));
    }
    for (const char* name : {"c_attn", "c_proj"}) {
      names.push_back(absl::StrCat("transformer.h.", layer, ".attn.", name, ".weight"));
      names.push_back(absl::StrCat("transformer.h.", layer, ".attn.", name, ".bias"));
    }
    for (const char* name : {"self.query", "self.key", "self.value", "output.dense"}) {
      names.push_back(absl::StrCat("bert.encoder.layer.", layer, ".attention.", name, ".weight"));
      names.push_back(absl::StrCat("bert.encoder.layer.", layer, ".attention.", name, ".bias"));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A description that was accepted holds complete layers, as many as sources.
void CheckDescription(const ModelDescription& model) {
  Require(!model.layers.empty(), "a model has layers");
  Require(model.layers.size() == model.sources.size(), "a layer has its sources");
  Require(model.max_tokens >= 0, "max_tokens is not negative");
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerSpec& spec = model.layers[i];
    const auto again = LayerSpecFromProto(LayerSpecToProto(spec), "layer");
    Require(again.ok(), "a completed layer is accepted again");
    Require(again->query_width() == spec.query_width() && again->output_size == spec.output_size,
            "a completed layer stays the same");
    const WeightSource& query = model.sources[i].query;
    Require(!query.tensor.empty() && query.first_output >= 0 &&
                query.first_output + spec.query_width() <= query.outputs,
            "a projection lies within its tensor");
  }
}

void CheckHeader(std::string_view text, uint64_t data_bytes) {
  const auto header = ParseSafetensorsHeader(text, data_bytes);
  if (!header.ok()) return;
  uint64_t covered = 0;
  for (const auto& [name, entry] : header->tensors) {
    Require(entry.begin <= entry.end && entry.end <= data_bytes, "a tensor lies within the data");
    uint64_t bytes = SafetensorsElementSize(entry.dtype);
    Require(bytes > 0, "a tensor has a known dtype");
    for (const int64_t extent : entry.shape) bytes *= static_cast<uint64_t>(extent);
    Require(entry.end - entry.begin == bytes, "a tensor has the bytes of its shape");
    covered += bytes;
  }
  Require(covered == data_bytes, "tensors cover the data");
}

}  // namespace

int FuzzSafetensors(const uint8_t* data, size_t size) {
  if (size < kSafetensorsPrefixBytes) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + kSafetensorsPrefixBytes,
                              size - kSafetensorsPrefixBytes);
  const auto header_bytes = SafetensorsHeaderBytes(data, size);
  if (header_bytes.ok()) {
    Require(*header_bytes <= rest.size(), "the header lies within the file");
    CheckHeader(rest.substr(0, static_cast<size_t>(*header_bytes)), rest.size() - *header_bytes);
  }
  uint64_t data_bytes;
  std::memcpy(&data_bytes, data, sizeof data_bytes);
  CheckHeader(rest, data_bytes);
  return 0;
}

int FuzzHuggingFaceConfig(const uint8_t* data, size_t size) {
  static const std::vector<std::string>& names = *new std::vector<std::string>(TensorNames());
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto model = DescribeHuggingFaceModel(text, names);
  if (model.ok()) CheckDescription(*model);
  return 0;
}

int FuzzModelConfig(const uint8_t* data, size_t size) {
  const auto config = ParseModelConfig(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) return 0;
  CheckDescription(config->model);
  Require(config->safetensors.find('/') == std::string::npos, "weights lie in the same folder");
  return 0;
}

}  // namespace attnserve
