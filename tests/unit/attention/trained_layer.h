// The attention layers of the trained model that ../shared holds, with the activations computed for
// them in float64 and stored as F32.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_TRAINED_LAYER_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_TRAINED_LAYER_H_

#include <filesystem>
#include <optional>
#include <string>

#include "lib/attention/layer_spec.h"
#include "lib/attention/reference.h"
#include "tests/unit/attention/tensor_file.h"

namespace attnserve {

struct TrainedLayer {
  LayerSpec spec;
  reference::Weights weights;
  reference::Input input;
  reference::Values expected_weights, expected_output;
};

// [out, in] as Hugging Face stores it to [in, out].
inline reference::Values Transposed(const FileTensor& tensor) {
  const size_t out = static_cast<size_t>(tensor.shape[0]),
               in = static_cast<size_t>(tensor.shape[1]);
  reference::Values result(tensor.values.size());
  for (size_t o = 0; o < out; ++o) {
    for (size_t i = 0; i < in; ++i) result[i * out + o] = tensor.values[o * in + i];
  }
  return result;
}

class TrainedModel {
 public:
  static constexpr int kLayers = 5;
  static constexpr int64_t kTokens = 48, kWidth = 64;

  // The model's folder; nullopt where ../shared is absent.
  static std::optional<std::string> Folder() {
    const auto folder = std::filesystem::path(ATTNSERVE_SHARED_DIR) / "models" / "stories260k";
    if (!std::filesystem::is_directory(folder)) return std::nullopt;
    return folder.string();
  }

  explicit TrainedModel(const std::string& folder)
      : weights_(ReadTensorFile(folder + "/model.safetensors").value()),
        activations_(ReadTensorFile(folder + "/expected_attention.safetensors").value()) {}

  TrainedLayer layer(int index) const {
    TrainedLayer layer;
    layer.spec.input_size = layer.spec.output_size = kWidth;
    layer.spec.head_count = 8;
    layer.spec.kv_head_count = 4;
    layer.spec.key_head_size = layer.spec.value_head_size = 8;
    layer.spec.output_projection = true;
    layer.spec.attention.causal = true;
    layer.spec.attention.position = RotaryPosition{};
    const auto weight = [&](const std::string& name) {
      return Transposed(weights_.tensors.at("model.layers." + std::to_string(index) +
                                            ".self_attn." + name + "_proj.weight"));
    };
    layer.weights.query = weight("q");
    layer.weights.key = weight("k");
    layer.weights.value = weight("v");
    layer.weights.output = weight("o");
    const auto activation = [&](const std::string& name) {
      return activations_.tensors.at("layer." + std::to_string(index) + "." + name).values;
    };
    layer.input.query_count = kTokens;
    layer.input.x = activation("input");
    layer.expected_weights = activation("weights");
    layer.expected_output = activation("output");
    return layer;
  }

 private:
  TensorFile weights_, activations_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_TRAINED_LAYER_H_
