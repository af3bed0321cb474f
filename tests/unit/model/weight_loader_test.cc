#include "lib/model/weight_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lib/model/hugging_face.h"
#include "tests/unit/model/temp_folder.h"
#include "tests/unit/model/test_checkpoint.h"

namespace attnserve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A mapped checkpoint, before its layers are loaded.
struct Mapped {
  TempFolder folder;
  std::unique_ptr<SafetensorsFile> file;
  ModelDescription model;
};

// `checkpoint` lies in the file; `names` are what the description is made from.
std::unique_ptr<Mapped> Map(const nlohmann::json& config, const TestCheckpoint& checkpoint,
                            const std::vector<std::string>& names) {
  auto mapped = std::make_unique<Mapped>();
  checkpoint.Write(mapped->folder.File("model.safetensors"));
  auto file = SafetensorsFile::Open(mapped->folder.File("model.safetensors"));
  EXPECT_TRUE(file.ok()) << file.status();
  mapped->file = *std::move(file);
  auto model = DescribeHuggingFaceModel(config.dump(), names);
  EXPECT_TRUE(model.ok()) << model.status();
  mapped->model = *std::move(model);
  return mapped;
}

std::unique_ptr<Mapped> MapLlama(const std::string& type, const TestCheckpoint& checkpoint) {
  return Map(LlamaConfig(type, {}), checkpoint, LlamaCheckpoint(type, {}).Names());
}

float Element(const WeightView& view, int64_t in, int64_t out) {
  const TensorView tensor{view.dtype, {}, view.data};
  return tensor.At(in * view.in_stride + out * view.out_stride);
}

TEST(LoadLayer, LinearIsViewedAsOutIn) {
  const TestSizes sizes;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const TestCheckpoint checkpoint = LlamaCheckpoint("llama", sizes, "model.", dtype);
    const auto mapped = MapLlama("llama", checkpoint);
    LayerSpec spec = mapped->model.layers[1];
    const auto layer = LoadLayer(*mapped->file, mapped->model.sources[1], &spec);
    ASSERT_TRUE(layer.ok()) << layer.status();
    const WeightView& key = layer->weights.key;
    EXPECT_EQ(key.dtype, dtype);
    EXPECT_EQ(key.in, 15);
    EXPECT_EQ(key.out, 8);
    const std::vector<float> values = checkpoint.Values("model.layers.1.self_attn.k_proj.weight");
    for (int64_t out = 0; out < key.out; ++out) {
      for (int64_t in = 0; in < key.in; ++in) {
        EXPECT_EQ(Element(key, in, out), values[static_cast<size_t>(out * key.in + in)]);
      }
    }
    EXPECT_TRUE(layer->weights.key_bias.empty());
  }
}

TEST(LoadLayer, FusedConv1DIsViewedWithoutCopying) {
  const TestCheckpoint checkpoint = Gpt2Checkpoint(kPlainSizes);
  const auto mapped = Map(Gpt2Config(kPlainSizes), checkpoint, checkpoint.Names());
  LayerSpec spec = mapped->model.layers[0];
  const auto layer = LoadLayer(*mapped->file, mapped->model.sources[0], &spec);
  ASSERT_TRUE(layer.ok()) << layer.status();
  EXPECT_EQ(layer->tensors.size(), 4u);  // c_attn and c_proj, weight and bias
  const std::vector<float> fused = checkpoint.Values("transformer.h.0.attn.c_attn.weight");
  const std::vector<float> bias = checkpoint.Values("transformer.h.0.attn.c_attn.bias");
  const WeightView* parts[] = {&layer->weights.query, &layer->weights.key, &layer->weights.value};
  const std::vector<float>* biases[] = {&layer->weights.query_bias, &layer->weights.key_bias,
                                        &layer->weights.value_bias};
  for (int64_t part = 0; part < 3; ++part) {
    ASSERT_EQ(parts[part]->in, 15);
    ASSERT_EQ(parts[part]->out, 15);
    for (int64_t out = 0; out < 15; ++out) {
      for (int64_t in = 0; in < 15; ++in) {
        EXPECT_EQ(Element(*parts[part], in, out),
                  fused[static_cast<size_t>(in * 45 + part * 15 + out)]);
      }
      EXPECT_EQ((*biases[part])[static_cast<size_t>(out)],
                bias[static_cast<size_t>(part * 15 + out)]);
    }
  }
}

TEST(LoadLayer, HeadNormFactorsGoIntoTheSpec) {
  const TestCheckpoint checkpoint = LlamaCheckpoint("qwen3", {});
  const auto mapped = MapLlama("qwen3", checkpoint);
  LayerSpec spec = mapped->model.layers[0];
  ASSERT_TRUE(LoadLayer(*mapped->file, mapped->model.sources[0], &spec).ok());
  EXPECT_EQ(spec.attention.query_norm.weight,
            checkpoint.Values("model.layers.0.self_attn.q_norm.weight"));
  EXPECT_EQ(spec.attention.key_norm.weight,
            checkpoint.Values("model.layers.0.self_attn.k_norm.weight"));
}

TEST(LoadLayer, MissingTensorIsNamed) {
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight",
                           "q_proj.bias", "k_proj.bias", "v_proj.bias"}) {
    TestCheckpoint checkpoint = LlamaCheckpoint("qwen2", {});
    const std::string full = std::string("model.layers.0.self_attn.") + name;
    checkpoint.Remove(full);
    const auto mapped = MapLlama("qwen2", checkpoint);
    LayerSpec spec = mapped->model.layers[0];
    const auto layer = LoadLayer(*mapped->file, mapped->model.sources[0], &spec);
    EXPECT_EQ(layer.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(layer.status().message()),
                AllOf(HasSubstr("model.safetensors"), HasSubstr(full)));
  }
}

TEST(LoadLayer, WrongShapeIsNamed) {
  const std::pair<const char*, Shape> wrong[] = {
      {"q_proj.weight", {15, 24}}, {"k_proj.weight", {24, 15}}, {"v_proj.weight", {8, 15, 1}},
      {"o_proj.weight", {360}},    {"q_norm.weight", {24}},     {"k_norm.weight", {1, 4}}};
  for (const auto& [name, shape] : wrong) {
    TestCheckpoint checkpoint = LlamaCheckpoint("qwen3", {});
    const std::string full = std::string("model.layers.0.self_attn.") + name;
    checkpoint.Add(full, shape);
    const auto mapped = MapLlama("qwen3", checkpoint);
    LayerSpec spec = mapped->model.layers[0];
    const auto layer = LoadLayer(*mapped->file, mapped->model.sources[0], &spec);
    EXPECT_EQ(layer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(layer.status().message()),
                AllOf(HasSubstr(full), HasSubstr("has shape " + ShapeToString(shape)),
                      HasSubstr("expected [")));
  }
}

TEST(LoadLayer, OtherDTypesAreNamed) {
  const TempFolder folder;
  const std::vector<int64_t> data(15 * 24);
  ASSERT_EQ(
      WriteSafetensors(
          folder.File("x.safetensors"),
          {{"model.layers.0.self_attn.q_proj.weight", {DType::kI64, {24, 15}, data.data()}}}, {}),
      absl::OkStatus());
  const auto file = SafetensorsFile::Open(folder.File("x.safetensors"));
  ASSERT_TRUE(file.ok());
  const auto mapped = MapLlama("llama", LlamaCheckpoint("llama", {}));
  LayerSpec spec = mapped->model.layers[0];
  const auto layer = LoadLayer(**file, mapped->model.sources[0], &spec);
  EXPECT_EQ(layer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(layer.status().message()),
              HasSubstr("has dtype I64; weights are F32, F16 or BF16"));
}

}  // namespace
}  // namespace attnserve
