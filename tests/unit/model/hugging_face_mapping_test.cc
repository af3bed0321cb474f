// Checkpoints of every model type, mapped and computed by the float64 reference, against attention
// as the model code of transformers computes it.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/attention/reference.h"
#include "lib/model/hugging_face.h"
#include "lib/model/safetensors.h"
#include "lib/model/weight_loader.h"
#include "tests/unit/model/loaded_weights.h"
#include "tests/unit/model/naive_hugging_face.h"
#include "tests/unit/model/temp_folder.h"
#include "tests/unit/model/test_checkpoint.h"

namespace attnserve {
namespace {

constexpr int64_t kTokens = 9;

std::vector<double> RandomInput(int64_t hidden) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> x(static_cast<size_t>(kTokens * hidden));
  for (double& value : x) value = normal(random);
  return x;
}

std::vector<double> Frequencies(double theta, int64_t dimension) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < dimension; i += 2) {
    frequencies.push_back(1.0 /
                          std::pow(theta, static_cast<double>(i) / static_cast<double>(dimension)));
  }
  return frequencies;
}

// The default, which the reference does not round to float.
double DefaultScale(int64_t head_size) { return 1.0 / std::sqrt(static_cast<double>(head_size)); }

NaiveOptions LlamaOptions(const TestSizes& sizes) {
  NaiveOptions options;
  options.heads = sizes.heads;
  options.kv_heads = sizes.kv_heads;
  options.head_size = sizes.head_size;
  options.scale = DefaultScale(sizes.head_size);
  options.norm_epsilon = 1e-5f;
  options.inverse_frequencies = Frequencies(500.0, sizes.head_size);
  return options;
}

using Naive = std::function<NaiveResult(int64_t layer, const std::vector<double>& x)>;

// Writes the checkpoint, maps it and compares every layer.
void ExpectSameAttention(const nlohmann::json& config, const TestCheckpoint& checkpoint,
                         int64_t hidden, const Naive& naive) {
  const TempFolder folder;
  checkpoint.Write(folder.File("model.safetensors"));
  const auto file = SafetensorsFile::Open(folder.File("model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto model = DescribeHuggingFaceModel(config.dump(), (*file)->names());
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->layers.size(), model->sources.size());
  for (size_t layer = 0; layer < model->layers.size(); ++layer) {
    LayerSpec spec = model->layers[layer];
    const auto loaded = LoadLayer(**file, model->sources[layer], &spec);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    reference::Input input;
    input.query_count = kTokens;
    input.x = RandomInput(hidden);
    const reference::Output output = reference::Run(spec, ReferenceWeights(loaded->weights), input);
    const NaiveResult expected = naive(static_cast<int64_t>(layer), input.x);
    ASSERT_EQ(output.output.size(), expected.output.size());
    for (size_t i = 0; i < expected.output.size(); ++i) {
      ASSERT_NEAR(output.output[i], expected.output[i], expected.bound)
          << "layer " << layer << " element " << i;
    }
  }
}

void ExpectLlamaLike(const std::string& model_type, const nlohmann::json& config,
                     const TestCheckpoint& checkpoint, const TestSizes& sizes,
                     const NaiveOptions& options, const std::string& prefix = "model.") {
  SCOPED_TRACE(model_type);
  ExpectSameAttention(
      config, checkpoint, sizes.hidden, [&](int64_t layer, const std::vector<double>& x) {
        return NaiveLlama(checkpoint, absl::StrCat(prefix, "layers.", layer, ".self_attn."), x,
                          sizes.hidden, options);
      });
}

TEST(HuggingFaceMapping, LlamaLikeModelsMatchTheirModelCode) {
  const TestSizes sizes;
  for (const std::string type : {"llama", "mistral", "qwen2", "qwen3"}) {
    ExpectLlamaLike(type, LlamaConfig(type, sizes), LlamaCheckpoint(type, sizes), sizes,
                    LlamaOptions(sizes));
  }
}

TEST(HuggingFaceMapping, HalfPrecisionTensorsMatch) {
  const TestSizes sizes;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    ExpectLlamaLike("qwen3", LlamaConfig("qwen3", sizes),
                    LlamaCheckpoint("qwen3", sizes, "model.", dtype), sizes, LlamaOptions(sizes));
  }
}

TEST(HuggingFaceMapping, NamesWithoutPrefixMatch) {
  const TestSizes sizes;
  ExpectLlamaLike("llama", LlamaConfig("llama", sizes), LlamaCheckpoint("llama", sizes, ""), sizes,
                  LlamaOptions(sizes), "");
}

TEST(HuggingFaceMapping, AttentionBiasMatches) {
  const TestSizes sizes;
  for (const std::string type : {"llama", "qwen3"}) {
    nlohmann::json config = LlamaConfig(type, sizes);
    config["attention_bias"] = true;
    TestCheckpoint checkpoint = LlamaCheckpoint(type, sizes);
    for (int64_t layer = 0; layer < sizes.layers; ++layer) {
      const std::string scope = absl::StrCat("model.layers.", layer, ".self_attn.");
      checkpoint.Add(scope + "q_proj.bias", {sizes.heads * sizes.head_size});
      checkpoint.Add(scope + "k_proj.bias", {sizes.kv_heads * sizes.head_size});
      checkpoint.Add(scope + "v_proj.bias", {sizes.kv_heads * sizes.head_size});
      checkpoint.Add(scope + "o_proj.bias", {sizes.hidden});
    }
    ExpectLlamaLike(type, config, checkpoint, sizes, LlamaOptions(sizes));
  }
}

TEST(HuggingFaceMapping, SlidingWindowCountsTheTokenItself) {
  const TestSizes sizes;
  for (const int64_t window : {1, 2, 4, 9}) {
    nlohmann::json config = LlamaConfig("mistral", sizes);
    config["sliding_window"] = window;
    NaiveOptions options = LlamaOptions(sizes);
    options.window = window;
    ExpectLlamaLike("mistral", config, LlamaCheckpoint("mistral", sizes), sizes, options);
  }
}

TEST(HuggingFaceMapping, LinearScalingAndPartialRotationMatch) {
  const TestSizes sizes;
  nlohmann::json config = LlamaConfig("llama", sizes);
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  NaiveOptions options = LlamaOptions(sizes);
  for (double& frequency : options.inverse_frequencies) frequency /= 4.0;
  ExpectLlamaLike("llama", config, LlamaCheckpoint("llama", sizes), sizes, options);
  const TestSizes wide = {2, 15, 6, 2, 8};
  config = LlamaConfig("llama", wide);
  config["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 300.0}, {"partial_rotary_factor", 0.5}};
  options = LlamaOptions(wide);
  options.inverse_frequencies = Frequencies(300.0, 4);
  ExpectLlamaLike("llama", config, LlamaCheckpoint("llama", wide), wide, options);
}

TEST(HuggingFaceMapping, Gpt2MatchesItsModelCode) {
  for (const std::string prefix : {"transformer.", ""}) {
    for (const bool by_size : {true, false}) {
      for (const bool by_layer : {false, true}) {
        nlohmann::json config = Gpt2Config(kPlainSizes);
        config["scale_attn_weights"] = by_size;
        config["scale_attn_by_inverse_layer_idx"] = by_layer;
        const TestCheckpoint checkpoint = Gpt2Checkpoint(kPlainSizes, prefix);
        ExpectSameAttention(config, checkpoint, kPlainSizes.hidden,
                            [&](int64_t layer, const std::vector<double>& x) {
                              NaiveOptions options;
                              options.heads = options.kv_heads = kPlainSizes.heads;
                              options.head_size = kPlainSizes.head_size;
                              double scale = by_size ? 1.0 / std::sqrt(3.0) : 1.0;
                              if (by_layer) scale /= static_cast<double>(layer + 1);
                              options.scale = static_cast<float>(scale);
                              return NaiveGpt2(checkpoint,
                                               absl::StrCat(prefix, "h.", layer, ".attn."), x,
                                               kPlainSizes.hidden, options);
                            });
      }
    }
  }
}

TEST(HuggingFaceMapping, BertMatchesItsModelCode) {
  for (const std::string prefix : {"bert.", ""}) {
    const TestCheckpoint checkpoint = BertCheckpoint(kPlainSizes, prefix);
    ExpectSameAttention(
        BertConfig(kPlainSizes), checkpoint, kPlainSizes.hidden,
        [&](int64_t layer, const std::vector<double>& x) {
          NaiveOptions options;
          options.heads = options.kv_heads = kPlainSizes.heads;
          options.head_size = kPlainSizes.head_size;
          options.causal = false;
          options.scale = DefaultScale(kPlainSizes.head_size);
          return NaiveBert(checkpoint, absl::StrCat(prefix, "encoder.layer.", layer, ".attention."),
                           x, kPlainSizes.hidden, options);
        });
  }
}

}  // namespace
}  // namespace attnserve
