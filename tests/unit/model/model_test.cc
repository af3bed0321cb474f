#include "lib/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "lib/base/errors.h"
#include "lib/model/model_registry.h"
#include "tests/unit/model/run_layer.h"
#include "tests/unit/model/temp_folder.h"
#include "tests/unit/model/test_checkpoint.h"

namespace attnserve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kSeeded[] =
    "layers { kind: LAYER_KIND_SELF_ATTENTION input_size: 12 head_count: 3 "
    "attention { causal: true } output_projection: true } ";

std::shared_ptr<const Model> Load(const std::string& path) {
  const auto model = LoadModel("m", path, GemmBackend::kNative);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : nullptr;
}

absl::Status ErrorOf(const std::string& path) {
  const auto model = LoadModel("m", path, GemmBackend::kNative);
  EXPECT_FALSE(model.ok()) << path;
  EXPECT_FALSE(GetErrorDetail(model.status()).has_value());
  return model.status();
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A folder with a Hugging Face checkpoint.
void WriteFolder(const TempFolder& folder, const nlohmann::json& config,
                 const TestCheckpoint& checkpoint) {
  folder.Write("config.json", config.dump());
  checkpoint.Write(folder.File("model.safetensors"));
}

TEST(LoadModel, HuggingFaceFolderOfEveryTypeIsLoaded) {
  for (const std::string type : {"llama", "mistral", "qwen2", "qwen3"}) {
    const TempFolder folder;
    WriteFolder(folder, LlamaConfig(type, {}), LlamaCheckpoint(type, {}));
    const auto model = Load(folder.path());
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(model->name(), "m");
    EXPECT_EQ(model->format(), type);
    EXPECT_EQ(model->layer_count(), 2);
    EXPECT_EQ(model->max_tokens(), 64);
    EXPECT_EQ(model->weight_dtype(), DType::kF32);
    EXPECT_TRUE(model->chains());
    EXPECT_EQ(model->weight_bytes(),
              model->layer(0).weight_bytes() + model->layer(1).weight_bytes());
    // q and o [15, 24], k and v [15, 8] at least: panels are padded.
    EXPECT_GE(model->weight_bytes(), 2 * 4 * 15 * (24 + 24 + 8 + 8));
  }
  const TempFolder gpt2, bert;
  WriteFolder(gpt2, Gpt2Config(kPlainSizes), Gpt2Checkpoint(kPlainSizes));
  EXPECT_EQ(Load(gpt2.path())->format(), "gpt2");
  WriteFolder(bert, BertConfig(kPlainSizes), BertCheckpoint(kPlainSizes));
  EXPECT_EQ(Load(bert.path())->format(), "bert");
}

TEST(LoadModel, WeightTypeIsThatOfTheFile) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const TempFolder folder;
    WriteFolder(folder, LlamaConfig("llama", {}), LlamaCheckpoint("llama", {}, "model.", dtype));
    EXPECT_EQ(Load(folder.path())->weight_dtype(), dtype);
  }
}

TEST(LoadModel, ShardedCheckpointGivesTheSameLayers) {
  const TestCheckpoint checkpoint = LlamaCheckpoint("qwen3", {});
  const TempFolder whole, sharded;
  WriteFolder(whole, LlamaConfig("qwen3", {}), checkpoint);
  sharded.Write("config.json", LlamaConfig("qwen3", {}).dump());
  checkpoint.WriteSharded(sharded.path(), 2);
  const auto one = Load(whole.path());
  const auto other = Load(sharded.path());
  const std::vector<float> x(15 * 5, 0.25f);
  for (int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(RunSelfAttention(one->layer(layer), x), RunSelfAttention(other->layer(layer), x));
  }
}

TEST(LoadModel, SeedGivesTheSameModelEveryTime) {
  const TempFolder folder;
  const std::string one = folder.Write("a.textproto", std::string(kSeeded) + kSeeded + "seed: 5");
  const std::string other = folder.Write("b.textproto", std::string(kSeeded) + "seed: 6");
  std::vector<float> x(12 * 4);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3.0f;
  const auto model = Load(one);
  const std::vector<float> output = RunSelfAttention(model->layer(0), x);
  EXPECT_EQ(output, RunSelfAttention(Load(one)->layer(0), x));
  EXPECT_NE(output, RunSelfAttention(model->layer(1), x));
  EXPECT_NE(output, RunSelfAttention(Load(other)->layer(0), x));
  EXPECT_EQ(model->format(), "model.textproto");
  EXPECT_EQ(model->max_tokens(), 0);
}

TEST(LoadModel, TextprotoReadsTensorsBesideIt) {
  const TempFolder folder;
  TestCheckpoint checkpoint(DType::kBF16);
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    checkpoint.Add(std::string("layers.0.") + name + ".weight", {12, 12});
  }
  checkpoint.Add("something.else", {3});
  checkpoint.Write(folder.File("w.safetensors"));
  const std::string path =
      folder.Write("model.textproto", std::string(kSeeded) + "safetensors: 'w.safetensors'");
  for (const std::string& given : {path, folder.path()}) {
    const auto model = Load(given);
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(model->weight_dtype(), DType::kBF16);
  }
  checkpoint.Add("layers.0.q_proj.bias", {12});
  checkpoint.Write(folder.File("w.safetensors"));
  EXPECT_THAT(Message(ErrorOf(path)),
              AllOf(HasSubstr("w.safetensors"), HasSubstr("layers.0.q_proj.bias")));
}

TEST(LoadModel, LayersThatDoNotFitDoNotChain) {
  const TempFolder folder;
  const std::string path = folder.Write(
      "model.textproto",
      "layers { kind: LAYER_KIND_SELF_ATTENTION input_size: 12 output_size: 8 "
      "output_projection: true } "
      "layers { kind: LAYER_KIND_CROSS_ATTENTION input_size: 9 context_size: 5 } seed: 1");
  EXPECT_FALSE(Load(path)->chains());
}

TEST(LoadModel, PathsWithoutModelAreExplained) {
  const TempFolder folder;
  EXPECT_EQ(ErrorOf(folder.File("absent")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorOf(folder.File("absent.textproto")).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(ErrorOf(folder.path())),
              HasSubstr("has neither config.json (Hugging Face) nor model.textproto"));
  EXPECT_THAT(Message(ErrorOf(folder.Write("model.safetensors", "x"))),
              HasSubstr("name the folder"));
  folder.Write("config.json", LlamaConfig("llama", {}).dump());
  std::filesystem::remove(folder.File("model.safetensors"));
  EXPECT_THAT(Message(ErrorOf(folder.path())), HasSubstr("has neither model.safetensors nor"));
  folder.Write("model.textproto", std::string(kSeeded) + "seed: 1");
  EXPECT_THAT(Message(ErrorOf(folder.path())), HasSubstr("has both config.json and"));
}

TEST(LoadModel, ErrorsNameTheFile) {
  const TempFolder folder;
  WriteFolder(folder, {{"model_type", "t5"}}, LlamaCheckpoint("llama", {}));
  EXPECT_THAT(Message(ErrorOf(folder.path())),
              AllOf(HasSubstr(folder.File("config.json")), HasSubstr("t5")));
  folder.Write("config.json", "{");
  EXPECT_THAT(Message(ErrorOf(folder.path())), HasSubstr(folder.File("config.json")));
  folder.Write("model.safetensors", "short");
  EXPECT_THAT(Message(ErrorOf(folder.path())), HasSubstr(folder.File("model.safetensors")));
  const std::string path = folder.Write("bad.textproto", "layers {} seed: 1");
  EXPECT_THAT(Message(ErrorOf(path)), HasSubstr(path + ": layers[0].kind"));
  folder.Write("big.textproto", std::string((16 << 20) + 1, ' '));
  EXPECT_THAT(Message(ErrorOf(folder.File("big.textproto"))), HasSubstr("at most 16777216"));
}

TEST(LoadModel, NamesAreChecked) {
  const TempFolder folder;
  const std::string path = folder.Write("model.textproto", std::string(kSeeded) + "seed: 1");
  for (const std::string& name : {std::string("a"), std::string("Llama-3.1_8B"), std::string("0"),
                                  std::string("."), std::string(64, 'x')}) {
    EXPECT_TRUE(LoadModel(name, path, GemmBackend::kNative).ok()) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a/b"), std::string("\xc3\xa9"),
        std::string(65, 'x'), std::string("a\0b", 3), std::string("a\n")}) {
    EXPECT_EQ(LoadModel(name, path, GemmBackend::kNative).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

std::shared_ptr<const Model> Named(const std::string& name) {
  const TempFolder folder;
  const std::string path = folder.Write("model.textproto", std::string(kSeeded) + "seed: 1");
  return LoadModel(name, path, GemmBackend::kNative).value();
}

TEST(ModelRegistry, EmptyNameMeansTheOnlyModel) {
  ModelRegistry registry;
  EXPECT_THAT(Message(registry.Find("").status()), HasSubstr("served: none"));
  const auto only = Named("only");
  ASSERT_EQ(registry.Add(only), absl::OkStatus());
  EXPECT_EQ(registry.Find("").value(), only);
  EXPECT_EQ(registry.Find("only").value(), only);
  ASSERT_EQ(registry.Add(Named("b")), absl::OkStatus());
  const absl::Status unnamed = registry.Find("").status();
  EXPECT_EQ(GetErrorDetail(unnamed)->reason, "MODEL_NOT_FOUND");
  EXPECT_THAT(Message(unnamed), HasSubstr("several models are served (b, only)"));
  EXPECT_THAT(Message(unnamed), HasSubstr("--model"));
}

TEST(ModelRegistry, UnknownNameListsWhatIsServed) {
  ModelRegistry registry;
  for (const char* name : {"b", "a", "c"}) {
    ASSERT_EQ(registry.Add(Named(name)), absl::OkStatus());
  }
  const absl::Status status = registry.Find("d").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetail(status)->reason, "MODEL_NOT_FOUND");
  EXPECT_THAT(Message(status), HasSubstr("served: a, b, c"));
  std::string order;
  for (const auto& model : registry.List()) order += model->name();
  EXPECT_EQ(order, "abc");
}

TEST(ModelRegistry, TakenAndMalformedNamesAreRefused) {
  ModelRegistry registry;
  ASSERT_EQ(registry.Add(Named("a")), absl::OkStatus());
  EXPECT_EQ(registry.Add(Named("a")).code(), absl::StatusCode::kAlreadyExists);
  std::vector<std::unique_ptr<AttentionLayer>> layers;
  EXPECT_EQ(
      registry.Add(std::make_shared<const Model>("a b", "llama", std::move(layers), 0, DType::kF32))
          .code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(registry.List().size(), 1u);
}

}  // namespace
}  // namespace attnserve
