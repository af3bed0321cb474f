#include "client/attnctl/llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "lib/base/tensor.h"
#include "lib/model/safetensors.h"

namespace attnserve::ctl {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
constexpr int64_t kWidth = 10, kInner = 13, kLayers = 2, kVocabulary = 21;

json TinyConfig() {
  return {{"model_type", "llama"},       {"hidden_size", kWidth},
          {"intermediate_size", kInner}, {"num_hidden_layers", kLayers},
          {"num_attention_heads", 2},    {"num_key_value_heads", 1},
          {"vocab_size", kVocabulary},   {"max_position_embeddings", 32},
          {"rms_norm_eps", 1e-5},        {"hidden_act", "silu"},
          {"tie_word_embeddings", false}};
}

// A folder with a small random model, removed with the object.
class ModelFolder {
 public:
  explicit ModelFolder(DType dtype, bool sharded = false) {
    std::mt19937_64 random(5);
    const auto add = [&](const std::string& name, Shape shape) {
      Floats values(static_cast<size_t>(ElementCount(shape).value()));
      for (float& value : values) value = static_cast<float>(random() >> 40) * 0x1p-24f - 0.5f;
      Add(name, shape, dtype, values);
    };
    add("model.embed_tokens.weight", {kVocabulary, kWidth});
    add("model.norm.weight", {kWidth});
    add("lm_head.weight", {kVocabulary, kWidth});
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = absl::StrCat("model.layers.", i, ".");
      add(layer + "input_layernorm.weight", {kWidth});
      add(layer + "post_attention_layernorm.weight", {kWidth});
      add(layer + "mlp.gate_proj.weight", {kInner, kWidth});
      add(layer + "mlp.up_proj.weight", {kInner, kWidth});
      add(layer + "mlp.down_proj.weight", {kWidth, kInner});
    }
    Write(sharded);
    SetConfig(TinyConfig());
  }
  ~ModelFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  const std::vector<double>& weight(const std::string& name) const { return weights_.at(name); }
  void SetConfig(const json& config) const { std::ofstream(path_ + "/config.json") << config; }

 private:
  void Add(const std::string& name, const Shape& shape, DType dtype, const Floats& values) {
    LoadedTensor tensor;
    tensor.memory.Reserve(values.size() * sizeof(float));
    StoreFromF32(values.data(), static_cast<int64_t>(values.size()), dtype, tensor.memory.data());
    tensor.view = {dtype, shape, tensor.memory.data()};
    for (int64_t i = 0; i < tensor.view.elements(); ++i) {
      weights_[name].push_back(tensor.view.At(i));
    }
    tensors_[name] = std::move(tensor);
  }
  void Write(bool sharded) {
    std::vector<NamedTensor> shards[2];
    json map;
    for (const auto& [name, tensor] : tensors_) {
      const int shard = sharded ? static_cast<int>(map.size() % 2) : 0;
      shards[shard].push_back({name, tensor.view});
      map[name] = shard == 0 ? "a.safetensors" : "b.safetensors";
    }
    if (!sharded) {
      ASSERT_TRUE(WriteSafetensors(path_ + "/model.safetensors", shards[0], {}).ok());
      return;
    }
    ASSERT_TRUE(WriteSafetensors(path_ + "/a.safetensors", shards[0], {}).ok());
    ASSERT_TRUE(WriteSafetensors(path_ + "/b.safetensors", shards[1], {}).ok());
    std::ofstream(path_ + "/model.safetensors.index.json") << json{{"weight_map", map}};
  }

  static std::string MakeFolder() {
    std::string name = ::testing::TempDir() + "/attnctl_llama_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    return name;
  }

  std::string path_ = MakeFolder();
  std::map<std::string, LoadedTensor> tensors_;
  std::map<std::string, std::vector<double>> weights_;
};

using Doubles = std::vector<double>;

Doubles Norm(const Doubles& x, const Doubles& weight) {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  Doubles y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(x[i] / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5) * weight[i]);
  }
  return y;
}

Doubles Product(const Doubles& weight, const Doubles& x) {
  Doubles y(weight.size() / x.size());
  for (size_t i = 0; i < weight.size(); ++i) y[i / x.size()] += weight[i] * x[i % x.size()];
  return y;
}

// The attention of these tests: a running mean of the positions so far, reversed along the width.
template <typename Number>
std::vector<Number> MixTokens(const std::vector<Number>& x, int64_t tokens) {
  std::vector<Number> y(x.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < kWidth; ++i) {
      Number sum = 0;
      for (int64_t s = 0; s <= t; ++s) sum += x[static_cast<size_t>(s * kWidth + kWidth - 1 - i)];
      y[static_cast<size_t>(t * kWidth + i)] = sum / static_cast<Number>(t + 1);
    }
  }
  return y;
}

// Logits after the last token, in float64 from the definition.
Doubles Reference(const ModelFolder& model, const std::vector<int>& tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<Doubles> x;
  for (const int token : tokens) {
    const double* row = model.weight("model.embed_tokens.weight").data() + token * kWidth;
    x.emplace_back(row, row + kWidth);
  }
  for (int64_t l = 0; l < kLayers; ++l) {
    const std::string layer = absl::StrCat("model.layers.", l, ".");
    Doubles normed;
    for (const Doubles& row : x) {
      for (const double value : Norm(row, model.weight(layer + "input_layernorm.weight"))) {
        normed.push_back(value);
      }
    }
    const Doubles mixed = MixTokens(normed, count);
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < kWidth; ++i) x[t][i] += mixed[t * kWidth + i];
      const Doubles h = Norm(x[t], model.weight(layer + "post_attention_layernorm.weight"));
      Doubles gate = Product(model.weight(layer + "mlp.gate_proj.weight"), h);
      const Doubles up = Product(model.weight(layer + "mlp.up_proj.weight"), h);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      const Doubles down = Product(model.weight(layer + "mlp.down_proj.weight"), gate);
      for (size_t i = 0; i < kWidth; ++i) x[t][i] += down[i];
    }
  }
  return Product(model.weight("lm_head.weight"), Norm(x.back(), model.weight("model.norm.weight")));
}

void ExpectReference(const ModelFolder& folder) {
  const auto llama = Llama::Load(folder.path());
  ASSERT_TRUE(llama.ok()) << llama.status();
  const std::vector<int> tokens = {3, 0, 20, 7, 7};
  const auto attention = [](int64_t, const Floats& x, int64_t count) -> absl::StatusOr<Floats> {
    return MixTokens(x, count);
  };
  const auto logits = llama->Run(tokens, attention);
  ASSERT_TRUE(logits.ok()) << logits.status();
  const Doubles expected = Reference(folder, tokens);
  ASSERT_EQ(logits->size(), expected.size());
  double largest = 0.0;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  // Each layer adds some width + inner roundings to values of the logits' size.
  const double tolerance = kEpsilon * kLayers * (2 * kWidth + 2 * kInner) * largest;
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR((*logits)[i], expected[i], tolerance);
}

TEST(Llama, EqualsTheDefinitionInF32) { ExpectReference(ModelFolder(DType::kF32)); }
TEST(Llama, EqualsTheDefinitionInF16) { ExpectReference(ModelFolder(DType::kF16)); }
TEST(Llama, EqualsTheDefinitionInBf16) { ExpectReference(ModelFolder(DType::kBF16)); }
TEST(Llama, ReadsShards) { ExpectReference(ModelFolder(DType::kF32, /*sharded=*/true)); }

TEST(Llama, WrongFoldersAreErrors) {
  EXPECT_TRUE(absl::IsNotFound(Llama::Load("/nonexistent").status()));
  const ModelFolder folder(DType::kF32);
  const std::map<std::string, json> wrong = {
      {"model_type", "gpt2"},     {"model_type", 3},
      {"hidden_size", 0},         {"hidden_size", kWidth + 1},
      {"hidden_size", "ten"},     {"hidden_act", "gelu"},
      {"hidden_act", nullptr},    {"rms_norm_eps", "small"},
      {"tie_word_embeddings", 7}, {"num_hidden_layers", kLayers + 1},
      {"num_attention_heads", 3}, {"num_key_value_heads", 0},
      {"vocab_size", -1}};
  for (const auto& [name, value] : wrong) {
    json config = TinyConfig();
    config[name] = value;
    folder.SetConfig(config);
    EXPECT_FALSE(Llama::Load(folder.path()).ok()) << name << " = " << value;
  }
}

TEST(Llama, AttentionThatFailsEndsTheRun) {
  const ModelFolder folder(DType::kF32);
  const auto llama = Llama::Load(folder.path());
  ASSERT_TRUE(llama.ok()) << llama.status();
  const auto failing = [](int64_t, const Floats&, int64_t) -> absl::StatusOr<Floats> {
    return absl::UnavailableError("gone");
  };
  EXPECT_TRUE(absl::IsUnavailable(llama->Run({1}, failing).status()));
  const auto short_answer = [](int64_t, const Floats&, int64_t) -> absl::StatusOr<Floats> {
    return Floats(3);
  };
  EXPECT_THAT(std::string(llama->Run({1}, short_answer).status().message()),
              HasSubstr("answered 3 numbers"));
}

// The client's half alone: given the published outputs of the attention layers, it must ask for
// them with the published inputs, and name the published next token.
TEST(Llama, TrainedModelMeetsThePublishedValues) {
  const std::string folder = ATTNSERVE_SHARED_DIR "/models/stories260k";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not here";
  const auto llama = Llama::Load(folder);
  ASSERT_TRUE(llama.ok()) << llama.status();
  const auto values = SafetensorsFile::Open(folder + "/expected_attention.safetensors");
  ASSERT_TRUE(values.ok()) << values.status();
  std::ifstream file(folder + "/expected_greedy.json");
  const std::vector<int> tokens = json::parse(file)["token_ids"];
  constexpr size_t kTokens = 48;

  const auto published = [&](int64_t layer, const char* what) {
    const LoadedTensor tensor = (*values)->Load(absl::StrCat("layer.", layer, ".", what)).value();
    Floats result(static_cast<size_t>(tensor.view.elements()));
    LoadAsF32(tensor.view.dtype, tensor.view.data, tensor.view.elements(), result.data());
    return result;
  };
  const auto attention = [&](int64_t layer, const Floats& x, int64_t) -> absl::StatusOr<Floats> {
    const Floats expected = published(layer, "input");
    EXPECT_EQ(x.size(), expected.size());
    float largest = 0.0f;
    for (const float value : expected) largest = std::max(largest, std::fabs(value));
    const LlamaConfig& config = llama->config();
    const double tolerance = kEpsilon * static_cast<double>(layer + 1) * largest *
                             static_cast<double>(config.hidden_size + config.intermediate_size);
    for (size_t i = 0; i < std::min(x.size(), expected.size()); ++i) {
      EXPECT_NEAR(x[i], expected[i], tolerance) << "layer " << layer << ", element " << i;
    }
    return published(layer, "output");
  };
  const auto logits = llama->Run(absl::MakeConstSpan(tokens).subspan(0, kTokens), attention);
  ASSERT_TRUE(logits.ok()) << logits.status();
  EXPECT_EQ(std::max_element(logits->begin(), logits->end()) - logits->begin(), tokens[kTokens]);
}

}  // namespace
}  // namespace attnserve::ctl
