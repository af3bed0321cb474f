#include "tests/unit/model/test_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "lib/model/safetensors.h"

namespace attnserve {

void TestCheckpoint::Add(const std::string& name, const Shape& shape) {
  std::mt19937_64 random(std::hash<std::string>()(name));
  std::normal_distribution<float> normal;
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const float deviation = 1.0f / std::sqrt(static_cast<float>(shape.back()));
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random) * deviation;
  Tensor tensor{shape, std::vector<uint8_t>(values.size() * ElementSize(dtype_))};
  StoreFromF32(values.data(), count, dtype_, tensor.bytes.data());
  tensors_[name] = tensor;
}

TensorView TestCheckpoint::View(const Tensor& tensor) const {
  return {dtype_, tensor.shape, tensor.bytes.data()};
}

std::vector<float> TestCheckpoint::Values(const std::string& name) const {
  std::vector<float> values;
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return values;
  const TensorView view = View(found->second);
  values.resize(static_cast<size_t>(view.elements()));
  LoadAsF32(dtype_, view.data, view.elements(), values.data());
  return values;
}

std::vector<std::string> TestCheckpoint::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

void TestCheckpoint::Write(const std::string& path) const {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : tensors_) tensors.push_back({name, View(tensor)});
  ASSERT_EQ(WriteSafetensors(path, tensors, {{"format", "pt"}}), absl::OkStatus());
}

void TestCheckpoint::WriteSharded(const std::string& folder, int shards) const {
  nlohmann::json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", {}}};
  std::vector<std::vector<NamedTensor>> parts(static_cast<size_t>(shards));
  size_t next = 0;
  for (const auto& [name, tensor] : tensors_) {
    const size_t part = next++ % parts.size();
    parts[part].push_back({name, View(tensor)});
    index["weight_map"][name] =
        absl::StrCat("model-0000", part + 1, "-of-0000", shards, ".safetensors");
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    ASSERT_EQ(WriteSafetensors(
                  absl::StrCat(folder, "/model-0000", part + 1, "-of-0000", shards, ".safetensors"),
                  parts[part], {}),
              absl::OkStatus());
  }
  std::ofstream(folder + "/model.safetensors.index.json") << index.dump();
}

nlohmann::json LlamaConfig(const std::string& model_type, const TestSizes& sizes) {
  return {{"model_type", model_type},
          {"architectures", {"SomeForCausalLM"}},
          {"hidden_size", sizes.hidden},
          {"intermediate_size", 99},
          {"num_hidden_layers", sizes.layers},
          {"num_attention_heads", sizes.heads},
          {"num_key_value_heads", sizes.kv_heads},
          {"head_dim", sizes.head_size},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500.0},
          {"rope_scaling", nullptr},
          {"sliding_window", nullptr},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", true},
          {"torch_dtype", "float32"},
          {"vocab_size", 512}};
}

TestCheckpoint LlamaCheckpoint(const std::string& model_type, const TestSizes& sizes,
                               const std::string& prefix, DType dtype) {
  TestCheckpoint checkpoint(dtype);
  const int64_t query_width = sizes.heads * sizes.head_size;
  const int64_t key_width = sizes.kv_heads * sizes.head_size;
  checkpoint.Add(prefix + "embed_tokens.weight", {8, sizes.hidden});
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string block = absl::StrCat(prefix, "layers.", layer, ".");
    const std::string scope = block + "self_attn.";
    checkpoint.Add(block + "input_layernorm.weight", {sizes.hidden});
    checkpoint.Add(scope + "q_proj.weight", {query_width, sizes.hidden});
    checkpoint.Add(scope + "k_proj.weight", {key_width, sizes.hidden});
    checkpoint.Add(scope + "v_proj.weight", {key_width, sizes.hidden});
    checkpoint.Add(scope + "o_proj.weight", {sizes.hidden, query_width});
    if (model_type == "qwen2") {
      checkpoint.Add(scope + "q_proj.bias", {query_width});
      checkpoint.Add(scope + "k_proj.bias", {key_width});
      checkpoint.Add(scope + "v_proj.bias", {key_width});
    }
    if (model_type == "qwen3") {
      checkpoint.Add(scope + "q_norm.weight", {sizes.head_size});
      checkpoint.Add(scope + "k_norm.weight", {sizes.head_size});
    }
  }
  return checkpoint;
}

nlohmann::json Gpt2Config(const TestSizes& sizes) {
  return {{"model_type", "gpt2"},
          {"n_embd", sizes.hidden},
          {"n_head", sizes.heads},
          {"n_layer", sizes.layers},
          {"n_positions", 48},
          {"n_ctx", 48},
          {"attn_pdrop", 0.1},
          {"layer_norm_epsilon", 1e-5},
          {"activation_function", "gelu_new"},
          {"reorder_and_upcast_attn", false}};
}

TestCheckpoint Gpt2Checkpoint(const TestSizes& sizes, const std::string& prefix) {
  TestCheckpoint checkpoint;
  checkpoint.Add(prefix + "wpe.weight", {48, sizes.hidden});
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string block = absl::StrCat(prefix, "h.", layer, ".");
    checkpoint.Add(block + "ln_1.weight", {sizes.hidden});
    checkpoint.Add(block + "attn.bias", {1, 1, 4, 4});  // the causal mask of old checkpoints
    checkpoint.Add(block + "attn.c_attn.weight", {sizes.hidden, 3 * sizes.hidden});
    checkpoint.Add(block + "attn.c_attn.bias", {3 * sizes.hidden});
    checkpoint.Add(block + "attn.c_proj.weight", {sizes.hidden, sizes.hidden});
    checkpoint.Add(block + "attn.c_proj.bias", {sizes.hidden});
  }
  return checkpoint;
}

nlohmann::json BertConfig(const TestSizes& sizes) {
  return {{"model_type", "bert"},
          {"hidden_size", sizes.hidden},
          {"num_attention_heads", sizes.heads},
          {"num_hidden_layers", sizes.layers},
          {"max_position_embeddings", 40},
          {"attention_probs_dropout_prob", 0.1},
          {"position_embedding_type", "absolute"},
          {"pooler_num_attention_heads", 12},
          {"pooler_size_per_head", 128},
          {"is_decoder", false},
          {"add_cross_attention", false},
          {"pruned_heads", nlohmann::json::object()},
          {"type_vocab_size", 2}};
}

TestCheckpoint BertCheckpoint(const TestSizes& sizes, const std::string& prefix) {
  TestCheckpoint checkpoint;
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string scope = absl::StrCat(prefix, "encoder.layer.", layer, ".attention.");
    for (const char* name : {"self.query", "self.key", "self.value", "output.dense"}) {
      checkpoint.Add(absl::StrCat(scope, name, ".weight"), {sizes.hidden, sizes.hidden});
      checkpoint.Add(absl::StrCat(scope, name, ".bias"), {sizes.hidden});
    }
    checkpoint.Add(scope + "output.LayerNorm.weight", {sizes.hidden});
    checkpoint.Add(scope + "output.LayerNorm.bias", {sizes.hidden});
  }
  return checkpoint;
}

}  // namespace attnserve
