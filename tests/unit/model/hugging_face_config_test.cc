// What is read from config.json, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "lib/model/hugging_face.h"
#include "tests/unit/model/test_checkpoint.h"

namespace attnserve {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const TestSizes kSizes;

std::vector<std::string> NamesFor(const std::string& type, const TestSizes& sizes) {
  if (type == "gpt2") return Gpt2Checkpoint(sizes).Names();
  if (type == "bert") return BertCheckpoint(sizes).Names();
  return LlamaCheckpoint(type, sizes).Names();
}

ModelDescription Describe(const json& config, const TestSizes& sizes = kSizes) {
  const auto model =
      DescribeHuggingFaceModel(config.dump(), NamesFor(config.at("model_type"), sizes));
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : ModelDescription{"", 0, {LayerSpec()}, {LayerSources()}};
}

std::string ErrorOf(const json& config, const TestSizes& sizes = kSizes) {
  const auto model =
      DescribeHuggingFaceModel(config.dump(), NamesFor(config.value("model_type", ""), sizes));
  EXPECT_FALSE(model.ok()) << config;
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(model.status().message());
}

json Llama(const char* key, const json& value) {
  json config = LlamaConfig("llama", kSizes);
  config[key] = value;
  return config;
}

json Without(json config, const char* key) {
  config.erase(key);
  return config;
}

RotaryPosition RotaryOf(const ModelDescription& model) {
  return std::get<RotaryPosition>(model.layers[0].attention.position);
}

std::vector<int64_t> WindowsOf(const ModelDescription& model) {
  std::vector<int64_t> left;
  for (const LayerSpec& layer : model.layers) left.push_back(layer.attention.window.left);
  return left;
}

TEST(HuggingFaceConfig, LlamaIsRead) {
  const ModelDescription model = Describe(LlamaConfig("llama", kSizes));
  EXPECT_EQ(model.format, "llama");
  EXPECT_EQ(model.max_tokens, 64);
  ASSERT_EQ(model.layers.size(), 2u);
  const LayerSpec& spec = model.layers[1];
  EXPECT_EQ(spec.kind, LayerKind::kSelfAttention);
  EXPECT_EQ(spec.input_size, 15);
  EXPECT_EQ(spec.output_size, 15);
  EXPECT_EQ(spec.head_count, 6);
  EXPECT_EQ(spec.kv_head_count, 2);
  EXPECT_EQ(spec.key_head_size, 4);
  EXPECT_EQ(spec.value_head_size, 4);
  EXPECT_TRUE(spec.output_projection);
  EXPECT_FALSE(spec.query_bias || spec.key_bias || spec.value_bias || spec.output_bias);
  EXPECT_TRUE(spec.attention.causal);
  EXPECT_EQ(spec.attention.window.left, -1);
  EXPECT_EQ(RotaryOf(model).theta, 500.0);
  EXPECT_EQ(RotaryOf(model).dimension, 4);
  EXPECT_EQ(RotaryOf(model).pairing, RotaryPosition::Pairing::kHalfSplit);
  EXPECT_EQ(spec.cache_dtype, DType::kF32);
  EXPECT_EQ(model.sources[1].query.tensor, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_TRUE(model.sources[1].query_bias.tensor.empty());
}

TEST(HuggingFaceConfig, Qwen2HasBiasesAndQwen3HasNorms) {
  const LayerSpec qwen2 = Describe(LlamaConfig("qwen2", kSizes)).layers[0];
  EXPECT_TRUE(qwen2.query_bias && qwen2.key_bias && qwen2.value_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_EQ(qwen2.attention.query_norm.kind, HeadNorm::Kind::kNone);
  const ModelDescription qwen3 = Describe(LlamaConfig("qwen3", kSizes));
  EXPECT_EQ(qwen3.layers[0].attention.query_norm.kind, HeadNorm::Kind::kRms);
  EXPECT_EQ(qwen3.layers[0].attention.key_norm.kind, HeadNorm::Kind::kRms);
  EXPECT_EQ(qwen3.layers[0].attention.key_norm.epsilon, 1e-5f);
  EXPECT_EQ(qwen3.sources[0].query_norm, "model.layers.0.self_attn.q_norm.weight");
}

TEST(HuggingFaceConfig, MissingKeysHaveTheDefaultsOfTransformers) {
  const TestSizes sizes = {2, 64, 32, 32, 2};
  json llama = LlamaConfig("llama", sizes);
  for (const char* key :
       {"num_key_value_heads", "head_dim", "max_position_embeddings", "rope_theta", "rope_scaling",
        "sliding_window", "attention_bias", "rms_norm_eps"}) {
    llama.erase(key);
  }
  const ModelDescription model = Describe(llama, sizes);
  EXPECT_EQ(model.layers[0].kv_head_count, 32);
  EXPECT_EQ(model.layers[0].key_head_size, 2);
  EXPECT_EQ(model.max_tokens, 2048);
  EXPECT_EQ(RotaryOf(model).theta, 10000.0);

  json mistral = llama;
  mistral["model_type"] = "mistral";
  const ModelDescription mistral_model = Describe(mistral, {2, 64, 32, 8, 2});
  EXPECT_EQ(mistral_model.layers[0].kv_head_count, 8);
  EXPECT_EQ(mistral_model.max_tokens, 131072);
  EXPECT_EQ(mistral_model.layers[0].attention.window.left, 4095);

  json qwen3 = llama;
  qwen3["model_type"] = "qwen3";
  const ModelDescription qwen3_model = Describe(qwen3, {2, 64, 32, 32, 128});
  EXPECT_EQ(qwen3_model.layers[0].key_head_size, 128);
  EXPECT_EQ(qwen3_model.layers[0].attention.query_norm.epsilon, 1e-6f);
  EXPECT_EQ(qwen3_model.max_tokens, 32768);
  EXPECT_EQ(qwen3_model.layers[0].attention.window.left, -1);
}

TEST(HuggingFaceConfig, NullKeyValueHeadsMeanAsManyAsQueryHeads) {
  const TestSizes sizes = {2, 15, 6, 6, 4};
  json config = LlamaConfig("mistral", sizes);
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Describe(config, sizes).layers[0].kv_head_count, 6);
}

TEST(HuggingFaceConfig, WindowsFollowTheModelType) {
  const TestSizes sizes = {4, 15, 6, 2, 4};
  json mistral = LlamaConfig("mistral", sizes);
  mistral["sliding_window"] = 10;
  EXPECT_EQ(WindowsOf(Describe(mistral, sizes)), std::vector<int64_t>({9, 9, 9, 9}));

  json qwen = LlamaConfig("qwen2", sizes);
  qwen["sliding_window"] = 10;
  qwen["max_window_layers"] = 3;
  EXPECT_EQ(WindowsOf(Describe(qwen, sizes)), std::vector<int64_t>({-1, -1, -1, -1}));
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(WindowsOf(Describe(qwen, sizes)), std::vector<int64_t>({-1, -1, -1, 9}));
  qwen["max_window_layers"] = 0;
  EXPECT_EQ(WindowsOf(Describe(qwen, sizes)), std::vector<int64_t>({9, 9, 9, 9}));
  qwen.erase("max_window_layers");  // 28
  EXPECT_EQ(WindowsOf(Describe(qwen, sizes)), std::vector<int64_t>({-1, -1, -1, -1}));
  qwen["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention",
                         "full_attention"};
  EXPECT_EQ(WindowsOf(Describe(qwen, sizes)), std::vector<int64_t>({9, -1, 9, -1}));
}

TEST(HuggingFaceConfig, LayerTypesThatContradictAreRefused) {
  json qwen = LlamaConfig("qwen3", kSizes);
  qwen["layer_types"] = {"full_attention"};
  EXPECT_THAT(ErrorOf(qwen), HasSubstr("layer_types has 1 entries, num_hidden_layers is 2"));
  qwen["layer_types"] = {"full_attention", "chunked_attention"};
  EXPECT_THAT(ErrorOf(qwen), HasSubstr("layer_types[1] is \"chunked_attention\""));
  qwen["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_THAT(ErrorOf(qwen), HasSubstr("no sliding window"));
  qwen["layer_types"] = {"full_attention", 3};
  EXPECT_THAT(ErrorOf(qwen), HasSubstr("array of strings"));
  qwen["layer_types"] = "full_attention";
  EXPECT_THAT(ErrorOf(qwen), HasSubstr("array of strings"));
  EXPECT_THAT(ErrorOf(Llama("layer_types", {"sliding_attention", "full_attention"})),
              HasSubstr("layer_types[0]"));
  Describe(Llama("layer_types", {"full_attention", "full_attention"}));
  json mistral = LlamaConfig("mistral", kSizes);
  mistral["sliding_window"] = 5;
  mistral["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_THAT(ErrorOf(mistral), HasSubstr("layer_types[1]"));
}

TEST(HuggingFaceConfig, ScalingTypesAreReadUnderOldAndNewNames) {
  for (const char* type_key : {"type", "rope_type"}) {
    for (const char* object : {"rope_scaling", "rope_parameters"}) {
      const auto with = [&](const char* type, json scaling) {
        scaling[type_key] = type;
        json config = Llama(object, scaling);
        return Describe(config);
      };
      const ModelDescription linear = with("linear", {{"factor", 2}});
      EXPECT_EQ(std::get<LinearScaling>(RotaryOf(linear).scaling).factor, 2.0);
      EXPECT_EQ(linear.max_tokens, 128);
      const ModelDescription dynamic = with("dynamic", {{"factor", 1.5}});
      EXPECT_EQ(std::get<DynamicNtkScaling>(RotaryOf(dynamic).scaling).factor, 1.5);
      EXPECT_EQ(std::get<DynamicNtkScaling>(RotaryOf(dynamic).scaling).original_max_tokens, 64);
      EXPECT_EQ(dynamic.max_tokens, 96);
      const ModelDescription llama3 = with("llama3", {{"factor", 8.0},
                                                      {"low_freq_factor", 1.0},
                                                      {"high_freq_factor", 4.0},
                                                      {"original_max_position_embeddings", 16}});
      EXPECT_EQ(std::get<Llama3Scaling>(RotaryOf(llama3).scaling).factor, 8.0);
      EXPECT_EQ(std::get<Llama3Scaling>(RotaryOf(llama3).scaling).high_freq_factor, 4.0);
      EXPECT_EQ(std::get<Llama3Scaling>(RotaryOf(llama3).scaling).original_max_tokens, 16);
      EXPECT_EQ(llama3.max_tokens, 64);
      const ModelDescription plain = with("default", json::object());
      EXPECT_TRUE(std::holds_alternative<std::monostate>(RotaryOf(plain).scaling));
    }
  }
}

TEST(HuggingFaceConfig, YarnIsRead) {
  const auto yarn = [](const json& extra) {
    json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}};
    scaling.update(extra);
    return Describe(Llama("rope_scaling", scaling));
  };
  const auto scaling = [&](const json& extra) {
    return std::get<YarnScaling>(RotaryOf(yarn(extra)).scaling);
  };
  EXPECT_EQ(scaling(json::object()).original_max_tokens, 64);
  EXPECT_EQ(scaling(json::object()).beta_fast, 32.0);
  EXPECT_EQ(scaling(json::object()).beta_slow, 1.0);
  EXPECT_FALSE(scaling(json::object()).attention_factor.has_value());
  EXPECT_EQ(yarn(json::object()).max_tokens, 256);
  const json full = {{"original_max_position_embeddings", 16},
                     {"beta_fast", 8},
                     {"beta_slow", 2},
                     {"attention_factor", 1.25},
                     {"truncate", true},
                     {"finetuned", true}};
  EXPECT_EQ(scaling(full).original_max_tokens, 16);
  EXPECT_EQ(scaling(full).beta_fast, 8.0);
  EXPECT_EQ(scaling(full).beta_slow, 2.0);
  EXPECT_EQ(scaling(full).attention_factor, 1.25);
  EXPECT_EQ(yarn(full).max_tokens, 64);
  // mscale and mscale_all_dim: (0.1 m ln 4 + 1) / (0.1 n ln 4 + 1).
  const double factor = *scaling({{"mscale", 1.0}, {"mscale_all_dim", 0.5}}).attention_factor;
  EXPECT_DOUBLE_EQ(factor, (0.1 * std::log(4.0) + 1.0) / (0.05 * std::log(4.0) + 1.0));
}

TEST(HuggingFaceConfig, RotaryScalingThatIsWrongIsRefused) {
  const auto error = [](const json& scaling) { return ErrorOf(Llama("rope_scaling", scaling)); };
  EXPECT_THAT(error({{"rope_type", "longrope"}, {"factor", 2.0}}),
              AllOf(HasSubstr("\"longrope\""), HasSubstr("supported are default, linear")));
  EXPECT_THAT(error({{"type", "su"}}), HasSubstr("\"su\""));
  EXPECT_THAT(error({{"type", "mrope"}, {"rope_type", "default"}, {"mrope_section", {1, 2}}}),
              HasSubstr("must be the same"));
  EXPECT_THAT(error({{"factor", 2.0}}), HasSubstr("neither rope_type nor type"));
  EXPECT_THAT(error({{"type", "linear"}}), HasSubstr("rope_scaling.factor is missing"));
  EXPECT_THAT(error({{"type", "linear"}, {"factor", 0.5}}), HasSubstr("factor"));
  EXPECT_THAT(error({{"type", "linear"}, {"factor", 1e9}}), HasSubstr("factor"));
  EXPECT_THAT(error({{"type", "linear"}, {"factor", "2"}}), HasSubstr("expected a number"));
  EXPECT_THAT(error({{"type", "linear"}, {"factor", 2}, {"short_factor", {1.0}}}),
              HasSubstr("\"short_factor\""));
  EXPECT_THAT(error({{"type", "llama3"}, {"factor", 8.0}}), HasSubstr("is missing"));
  EXPECT_THAT(error({{"type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 4.0},
                     {"high_freq_factor", 1.0},
                     {"original_max_position_embeddings", 16}}),
              HasSubstr("high_freq_factor"));
  EXPECT_THAT(error({{"type", "yarn"}, {"factor", 2}, {"truncate", false}}), HasSubstr("truncate"));
  EXPECT_THAT(error({{"type", "dynamic"}, {"factor", 2}, {"original_max_position_embeddings", 8}}),
              HasSubstr("must be equal"));
  EXPECT_THAT(error({{"type", 3}}), HasSubstr("expected a string"));
  EXPECT_THAT(error("linear"), HasSubstr("expected an object"));
  json both = Llama("rope_scaling", {{"type", "linear"}, {"factor", 2}});
  both["rope_parameters"] = {{"rope_type", "default"}};
  EXPECT_THAT(ErrorOf(both), HasSubstr("both set"));
  EXPECT_THAT(ErrorOf(Llama("rope_parameters", {{"full_attention", {{"rope_theta", 5.0}}}})),
              HasSubstr("\"full_attention\""));
  EXPECT_THAT(ErrorOf(Llama("rope_theta", 0.0)), HasSubstr("rotary.theta"));
  EXPECT_THAT(ErrorOf(Llama("partial_rotary_factor", 0.3)), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(ErrorOf(Llama("partial_rotary_factor", 1.5)), HasSubstr("partial_rotary_factor"));
}

TEST(HuggingFaceConfig, ImpossibleHeadsAreRefused) {
  EXPECT_THAT(ErrorOf(Llama("num_attention_heads", 0)), HasSubstr("num_attention_heads is 0"));
  EXPECT_THAT(ErrorOf(Llama("num_attention_heads", -6)), HasSubstr("num_attention_heads is -6"));
  EXPECT_THAT(ErrorOf(Llama("num_attention_heads", 6.0)), HasSubstr("num_attention_heads is 6.0"));
  EXPECT_THAT(ErrorOf(Llama("num_attention_heads", "6")), HasSubstr("num_attention_heads is"));
  EXPECT_THAT(ErrorOf(Llama("num_attention_heads", uint64_t{1} << 63)),
              HasSubstr("expected a whole number from 1 to 4096"));
  EXPECT_THAT(ErrorOf(Llama("num_attention_heads", 7)),
              HasSubstr("num_attention_heads 7 is not a multiple of num_key_value_heads 2"));
  EXPECT_THAT(ErrorOf(Llama("num_key_value_heads", 4)), HasSubstr("not a multiple"));
  EXPECT_THAT(ErrorOf(Llama("num_key_value_heads", 12)), HasSubstr("not a multiple"));
  EXPECT_THAT(ErrorOf(Llama("num_key_value_heads", 0)), HasSubstr("num_key_value_heads is 0"));
  EXPECT_THAT(ErrorOf(Without(LlamaConfig("mistral", kSizes), "num_key_value_heads")),
              HasSubstr("num_key_value_heads 8, the default"));
  EXPECT_THAT(ErrorOf(Without(LlamaConfig("llama", kSizes), "head_dim")),
              HasSubstr("hidden_size 15 is not divisible by num_attention_heads 6"));
  EXPECT_THAT(ErrorOf(Llama("head_dim", 0)), HasSubstr("head_dim is 0"));
  EXPECT_THAT(ErrorOf(Llama("head_dim", -4)), HasSubstr("head_dim is -4"));
  EXPECT_THAT(ErrorOf(Llama("head_dim", 5)), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(ErrorOf(Llama("head_dim", 4097)), HasSubstr("from 1 to 4096"));
  EXPECT_THAT(ErrorOf(Llama("hidden_size", 0)), HasSubstr("hidden_size is 0"));
  EXPECT_THAT(ErrorOf(Llama("hidden_size", int64_t{1} << 40)), HasSubstr("hidden_size is"));
  EXPECT_THAT(ErrorOf(Llama("num_hidden_layers", 0)), HasSubstr("num_hidden_layers is 0"));
  EXPECT_THAT(ErrorOf(Llama("num_hidden_layers", 1025)), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(ErrorOf(Llama("max_position_embeddings", -1)), HasSubstr("max_position_embeddings"));
  json wide = Llama("head_dim", 4096);
  wide["num_attention_heads"] = 4096;
  EXPECT_THAT(ErrorOf(wide), HasSubstr("head_count * key_head_size"));
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads"}) {
    EXPECT_THAT(ErrorOf(Without(LlamaConfig("llama", kSizes), key)),
                HasSubstr(std::string(key) + " is missing"));
  }
  json mistral = LlamaConfig("mistral", kSizes);
  mistral["sliding_window"] = 0;
  EXPECT_THAT(ErrorOf(mistral), HasSubstr("sliding_window is 0"));
  json gpt2 = Gpt2Config(kPlainSizes);
  gpt2["n_head"] = 4;
  EXPECT_THAT(ErrorOf(gpt2, kPlainSizes), HasSubstr("n_embd 15 is not divisible by n_head 4"));
  json bert = BertConfig(kPlainSizes);
  bert["num_attention_heads"] = 16;
  EXPECT_THAT(ErrorOf(bert, kPlainSizes), HasSubstr("not divisible"));
}

TEST(HuggingFaceConfig, ModelTypesThatAreNotSupportedAreNamed) {
  EXPECT_THAT(ErrorOf(Llama("model_type", "gpt_neox")),
              AllOf(HasSubstr("\"gpt_neox\""), HasSubstr("llama, mistral, qwen2, qwen3, gpt2")));
  EXPECT_THAT(ErrorOf(Without(LlamaConfig("llama", kSizes), "model_type")),
              HasSubstr("model_type is missing"));
}

TEST(HuggingFaceConfig, WhatWouldChangeAttentionIsRefusedByName) {
  EXPECT_THAT(ErrorOf(Llama("quantization_config", {{"quant_method", "gptq"}, {"bits", 4}})),
              AllOf(HasSubstr("quantization_config"), HasSubstr("gptq")));
  EXPECT_THAT(ErrorOf(Llama("auto_map", {{"AutoModelForCausalLM", "modeling_x.X"}})),
              HasSubstr("AutoModelForCausalLM"));
  Describe(Llama("auto_map", {{"AutoTokenizer", "tokenization_x.X"}}));
  const std::pair<const char*, json> keys[] = {{"attn_logit_softcapping", 50.0},
                                               {"query_pre_attn_scalar", 256},
                                               {"attention_multiplier", 0.1},
                                               {"use_qk_norm", true},
                                               {"alibi", true},
                                               {"clip_qkv", 8.0},
                                               {"sliding_window", 4096},
                                               {"use_sliding_window", true},
                                               {"no_rope_layers", {1, 0}},
                                               {"attention_chunk_size", 8192},
                                               {"add_cross_attention", true},
                                               {"is_decoder", true},
                                               {"pruned_heads", {{"0", {1}}}},
                                               {"rope_interleaved", true},
                                               {"dual_chunk_attention_config", {{"chunk_size", 8}}},
                                               {"original_max_position_embeddings", 4096},
                                               {"use_bidirectional_attention", true},
                                               {"attention_sinks", 4}};
  for (const auto& [key, value] : keys) {
    EXPECT_THAT(ErrorOf(Llama(key, value)), HasSubstr(std::string("\"") + key + "\" is "));
    Describe(Llama(key, nullptr));
  }
  json bert = BertConfig(kPlainSizes);
  bert["is_decoder"] = true;
  EXPECT_THAT(ErrorOf(bert, kPlainSizes), HasSubstr("\"is_decoder\""));
  bert = BertConfig(kPlainSizes);
  bert["position_embedding_type"] = "relative_key";
  EXPECT_THAT(ErrorOf(bert, kPlainSizes), HasSubstr("relative_key"));
  json gpt2 = Gpt2Config(kPlainSizes);
  gpt2["add_cross_attention"] = true;
  EXPECT_THAT(ErrorOf(gpt2, kPlainSizes), HasSubstr("\"add_cross_attention\""));
}

TEST(HuggingFaceConfig, KeysThatDoNotConcernAttentionArePassedOver) {
  json config = LlamaConfig("llama", kSizes);
  config["unknown_thing"] = 3;
  config["attn_implementation"] = "flash_attention_2";
  config["output_attentions"] = true;
  config["attention_dropout"] = 0.1;
  config["use_sliding_window"] = false;
  Describe(config);
}

TEST(HuggingFaceConfig, Gpt2UnderstandsCommonNames) {
  json config = Gpt2Config(kPlainSizes);
  for (const auto& [own, common] :
       {std::pair{"n_embd", "hidden_size"}, std::pair{"n_head", "num_attention_heads"},
        std::pair{"n_layer", "num_hidden_layers"},
        std::pair{"n_positions", "max_position_embeddings"}}) {
    config[common] = config[own];
    config.erase(own);
  }
  const ModelDescription model = Describe(config, kPlainSizes);
  EXPECT_EQ(model.format, "gpt2");
  EXPECT_EQ(model.max_tokens, 48);
  EXPECT_EQ(model.layers.size(), 2u);
  EXPECT_EQ(Describe(BertConfig(kPlainSizes), kPlainSizes).max_tokens, 40);
}

TEST(HuggingFaceConfig, TensorsThatDoNotFitAreRefused) {
  const json config = LlamaConfig("llama", kSizes);
  const auto error = [&](TestCheckpoint checkpoint) {
    const auto model = DescribeHuggingFaceModel(config.dump(), checkpoint.Names());
    EXPECT_FALSE(model.ok());
    return std::string(model.status().message());
  };
  EXPECT_THAT(error(Gpt2Checkpoint(kPlainSizes)),
              AllOf(HasSubstr("model.layers.0.self_attn.q_proj.weight"),
                    HasSubstr("does not fit model_type")));
  EXPECT_THAT(error(LlamaCheckpoint("qwen2", kSizes)),
              HasSubstr("model.layers.0.self_attn.k_proj.bias"));
  EXPECT_THAT(error(LlamaCheckpoint("qwen3", kSizes)),
              HasSubstr("model.layers.0.self_attn.k_norm.weight"));
  TestCheckpoint checkpoint = LlamaCheckpoint("llama", kSizes);
  checkpoint.Add("model.layers.0.self_attn.rotary_emb.inv_freq", {2});
  EXPECT_TRUE(DescribeHuggingFaceModel(config.dump(), checkpoint.Names()).ok());
  checkpoint.Add("model.layers.1.self_attn.q_proj.weight_scale", {1});
  EXPECT_THAT(error(checkpoint), HasSubstr("model.layers.1.self_attn.q_proj.weight_scale"));
}

TEST(HuggingFaceConfig, TextThatIsNoJsonObjectIsRefused) {
  for (const char* text :
       {"", "[]", "{", "{\"model_type\": \"llama\", \"model_type\": \"gpt2\"}"}) {
    EXPECT_EQ(DescribeHuggingFaceModel(text, {}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace attnserve
