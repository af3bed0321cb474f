#include "lib/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace attnserve {
namespace {

using testing::HasSubstr;

constexpr char kLayer[] =
    "layers { kind: LAYER_KIND_SELF_ATTENTION input_size: 12 head_count: 3 query_bias: true "
    "output_projection: true output_bias: true } ";

std::string ErrorOf(const std::string& text) {
  const auto config = ParseModelConfig(text);
  EXPECT_FALSE(config.ok()) << text;
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(ModelConfig, SeedIsRead) {
  const auto config = ParseModelConfig(std::string(kLayer) + "seed: 18446744073709551615");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->seed, ~uint64_t{0});
  EXPECT_TRUE(config->safetensors.empty());
  EXPECT_EQ(config->model.format, "model.textproto");
  EXPECT_EQ(config->model.max_tokens, 0);
  ASSERT_EQ(config->model.layers.size(), 1u);
  EXPECT_EQ(config->model.layers[0].key_head_size, 4);
  EXPECT_TRUE(ParseModelConfig(std::string(kLayer) + "seed: 0").ok());
}

TEST(ModelConfig, TensorsAreNamedByLayerAndProjection) {
  const auto config = ParseModelConfig(
      std::string(kLayer) +
      "layers { kind: LAYER_KIND_CROSS_ATTENTION input_size: 12 value_bias: true } "
      "safetensors: 'w.safetensors' max_tokens: 77");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->safetensors, "w.safetensors");
  EXPECT_EQ(config->model.max_tokens, 77);
  const LayerSources& self = config->model.sources[0];
  EXPECT_EQ(self.query.tensor, "layers.0.q_proj.weight");
  EXPECT_EQ(self.query_bias.tensor, "layers.0.q_proj.bias");
  EXPECT_EQ(self.key_bias.tensor, "");
  EXPECT_EQ(self.output.tensor, "layers.0.o_proj.weight");
  EXPECT_EQ(self.output_bias.tensor, "layers.0.o_proj.bias");
  const LayerSources& cross = config->model.sources[1];
  EXPECT_EQ(cross.value_bias.tensor, "layers.1.v_proj.bias");
  EXPECT_EQ(cross.output.tensor, "");
}

TEST(ModelConfig, MalformedTextIsRefusedWithItsPlace) {
  EXPECT_THAT(ErrorOf("layers {\n  head_cout: 3 }"), HasSubstr("line 2, column "));
  EXPECT_THAT(ErrorOf("layers { kind: LAYER_KIND_OTHER }"), HasSubstr("LAYER_KIND_OTHER"));
  EXPECT_THAT(ErrorOf("layers { head_count: 99999999999999999999 }"), HasSubstr("line 1"));
  EXPECT_THAT(ErrorOf("layers {"), HasSubstr("line 1"));
  EXPECT_THAT(ErrorOf("seed: 1 safetensors: 'x'"), HasSubstr("line 1"));
  EXPECT_THAT(ErrorOf("seed: 1 seed: 2"), HasSubstr("line 1"));
  ErrorOf(std::string("\0\xff", 2));
}

TEST(ModelConfig, DeepNestingIsRefused) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "layers { ";
  ErrorOf(text);
  std::string unknown;
  for (int i = 0; i < 100000; ++i) unknown += "[a.b/c.d] { ";
  ErrorOf(unknown);
}

TEST(ModelConfig, LayerErrorsNameTheField) {
  EXPECT_THAT(ErrorOf("seed: 1"), HasSubstr("has 0 layers"));
  EXPECT_THAT(ErrorOf("layers {} seed: 1"), HasSubstr("layers[0].kind"));
  EXPECT_THAT(ErrorOf(std::string(kLayer) +
                      "layers { kind: LAYER_KIND_SELF_ATTENTION input_size: 12 head_count: 5 } "
                      "seed: 1"),
              HasSubstr("layers[1].head_count"));
  EXPECT_THAT(ErrorOf("layers { kind: LAYER_KIND_CORE_ATTENTION head_count: 1 key_head_size: 4 } "
                      "seed: 1"),
              HasSubstr("layers[0].kind: is core attention"));
  std::string many;
  for (int i = 0; i < 1025; ++i) many += kLayer;
  EXPECT_THAT(ErrorOf(many + "seed: 1"), HasSubstr("has 1025 layers, expected 1 to 1024"));
}

TEST(ModelConfig, WeightsAreRequiredAndStayInTheFolder) {
  EXPECT_THAT(ErrorOf(kLayer), HasSubstr("neither safetensors nor seed"));
  for (const char* name : {"", "..", "../w.safetensors", "/w.safetensors", "a/b"}) {
    EXPECT_THAT(ErrorOf(std::string(kLayer) + "safetensors: '" + name + "'"),
                HasSubstr("same folder"))
        << name;
  }
  EXPECT_THAT(ErrorOf(std::string(kLayer) + "seed: 1 max_tokens: -1"), HasSubstr("max_tokens"));
}

}  // namespace
}  // namespace attnserve
