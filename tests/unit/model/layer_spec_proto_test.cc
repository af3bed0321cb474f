#include "lib/model/layer_spec_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <variant>

#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "lib/base/errors.h"

namespace attnserve {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::ElementsAre;
using testing::HasSubstr;

v1::LayerSpec Proto(const std::string& text) {
  v1::LayerSpec proto;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &proto)) << text;
  return proto;
}

LayerSpec Spec(const std::string& text) {
  const auto spec = LayerSpecFromProto(Proto(text), "layers[2]");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : LayerSpec();
}

// Self-attention, d_in 24, 4 heads of 6.
constexpr char kSelf[] = "kind: LAYER_KIND_SELF_ATTENTION input_size: 24 head_count: 4 ";

void ExpectError(const std::string& text, const std::string& reason, const std::string& field) {
  const auto spec = LayerSpecFromProto(Proto(text), "core.layers[2]");
  ASSERT_FALSE(spec.ok()) << text;
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  const auto detail = GetErrorDetail(spec.status());
  ASSERT_TRUE(detail.has_value()) << spec.status();
  EXPECT_EQ(detail->reason, reason) << spec.status();
  EXPECT_EQ(detail->field, "core.layers[2]." + field) << spec.status();
}

TEST(LayerSpecFromProto, UnsetFieldsBecomeTheirDefaults) {
  const LayerSpec spec = Spec("kind: LAYER_KIND_SELF_ATTENTION input_size: 24");
  EXPECT_EQ(spec.head_count, 1);
  EXPECT_EQ(spec.kv_head_count, 1);
  EXPECT_EQ(spec.key_head_size, 24);
  EXPECT_EQ(spec.value_head_size, 24);
  EXPECT_EQ(spec.output_size, 24);
  EXPECT_EQ(spec.cache_dtype, DType::kF32);
  EXPECT_FALSE(spec.attention.causal);
  EXPECT_EQ(spec.attention.window.left, -1);
  EXPECT_EQ(spec.attention.window.right, -1);
  EXPECT_FALSE(spec.attention.scale.has_value());
  EXPECT_EQ(spec.attention.query_norm.kind, HeadNorm::Kind::kNone);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(spec.attention.position));
}

TEST(LayerSpecFromProto, EveryFieldArrives) {
  const LayerSpec spec = Spec(R"(
      kind: LAYER_KIND_CROSS_ATTENTION input_size: 24 context_size: 10 output_size: 7
      head_count: 4 kv_head_count: 2 key_head_size: 6 value_head_size: 5
      query_bias: true value_bias: true output_projection: true output_bias: true
      cache_dtype: DTYPE_BF16
      attention {
        causal: true window { left: 3 right: 0 } sink_token_count: 2 scale: 0 softcap: 30
        sink_logits: [1, 2, 3, 4]
        query_norm { kind: KIND_RMS epsilon: 0.5 weight: [1, 2, 3, 4, 5, 6] }
        key_norm { kind: KIND_LAYER epsilon: 0.25 weight: [1, 1, 1, 1, 1, 2]
                   bias: [0, 0, 0, 0, 0, 3] }
      })");
  EXPECT_EQ(spec.kind, LayerKind::kCrossAttention);
  EXPECT_EQ(spec.context_size, 10);
  EXPECT_EQ(spec.output_size, 7);
  EXPECT_EQ(spec.kv_head_count, 2);
  EXPECT_EQ(spec.value_head_size, 5);
  EXPECT_TRUE(spec.query_bias);
  EXPECT_FALSE(spec.key_bias);
  EXPECT_TRUE(spec.value_bias);
  EXPECT_TRUE(spec.output_bias);
  EXPECT_EQ(spec.cache_dtype, DType::kBF16);
  const AttentionOptions& options = spec.attention;
  EXPECT_TRUE(options.causal);
  EXPECT_EQ(options.window.left, 3);
  EXPECT_EQ(options.window.right, 0);
  EXPECT_EQ(options.sink_token_count, 2);
  ASSERT_TRUE(options.scale.has_value());
  EXPECT_EQ(*options.scale, 0.0f);
  EXPECT_EQ(options.softcap, 30.0f);
  EXPECT_THAT(options.sink_logits, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(options.query_norm.kind, HeadNorm::Kind::kRms);
  EXPECT_EQ(options.query_norm.epsilon, 0.5f);
  EXPECT_THAT(options.query_norm.weight, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(options.key_norm.kind, HeadNorm::Kind::kLayer);
  EXPECT_THAT(options.key_norm.bias, ElementsAre(0, 0, 0, 0, 0, 3));
}

TEST(LayerSpecFromProto, PositionsArrive) {
  const auto position = [](const std::string& text) {
    return Spec(std::string(kSelf) + "attention { " + text + " }").attention.position;
  };
  EXPECT_EQ(std::get<SinusoidalPosition>(position("sinusoidal {}")).base, 10000.0);
  EXPECT_EQ(std::get<SinusoidalPosition>(position("sinusoidal { base: 7 }")).base, 7.0);
  EXPECT_THAT(std::get<AlibiPosition>(position("alibi { slopes: [1, 2, 3, 4] }")).slopes,
              ElementsAre(1, 2, 3, 4));
  const auto rotary = [&](const std::string& text) {
    return std::get<RotaryPosition>(position("rotary { " + text + " }"));
  };
  const RotaryPosition plain = rotary("pairing: PAIRING_HALF_SPLIT");
  EXPECT_EQ(plain.pairing, RotaryPosition::Pairing::kHalfSplit);
  EXPECT_EQ(plain.theta, 10000.0);
  EXPECT_EQ(plain.dimension, 6);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(plain.scaling));
  const RotaryPosition partial = rotary("pairing: PAIRING_INTERLEAVED theta: 5e5 dimension: 4");
  EXPECT_EQ(partial.pairing, RotaryPosition::Pairing::kInterleaved);
  EXPECT_EQ(partial.theta, 5e5);
  EXPECT_EQ(partial.dimension, 4);

  const std::string half = "pairing: PAIRING_HALF_SPLIT ";
  EXPECT_EQ(std::get<LinearScaling>(rotary(half + "linear { factor: 3 }").scaling).factor, 3.0);
  const auto dynamic = std::get<DynamicNtkScaling>(
      rotary(half + "dynamic_ntk { factor: 2 original_max_tokens: 9 }").scaling);
  EXPECT_EQ(dynamic.factor, 2.0);
  EXPECT_EQ(dynamic.original_max_tokens, 9);
  const auto yarn =
      std::get<YarnScaling>(rotary(half + "yarn { factor: 4 original_max_tokens: 11 }").scaling);
  EXPECT_EQ(yarn.factor, 4.0);
  EXPECT_EQ(yarn.original_max_tokens, 11);
  EXPECT_EQ(yarn.beta_fast, 32.0);
  EXPECT_EQ(yarn.beta_slow, 1.0);
  EXPECT_FALSE(yarn.attention_factor.has_value());
  const auto full_yarn = std::get<YarnScaling>(
      rotary(half + "yarn { factor: 4 original_max_tokens: 11 beta_fast: 8 beta_slow: 2 "
                    "attention_factor: 1.5 }")
          .scaling);
  EXPECT_EQ(full_yarn.beta_fast, 8.0);
  EXPECT_EQ(full_yarn.beta_slow, 2.0);
  EXPECT_EQ(full_yarn.attention_factor, 1.5);
  const auto llama3 = std::get<Llama3Scaling>(
      rotary(half + "llama3 { factor: 8 low_freq_factor: 1 high_freq_factor: 4 "
                    "original_max_tokens: 13 }")
          .scaling);
  EXPECT_EQ(llama3.factor, 8.0);
  EXPECT_EQ(llama3.low_freq_factor, 1.0);
  EXPECT_EQ(llama3.high_freq_factor, 4.0);
  EXPECT_EQ(llama3.original_max_tokens, 13);
}

TEST(LayerSpecFromProto, ErrorsCarryTheFieldsPath) {
  const std::string self = kSelf;
  ExpectError("input_size: 24", "BAD_OPTION", "kind");
  ExpectError("kind: LAYER_KIND_SELF_ATTENTION", "BAD_SHAPE", "input_size");
  ExpectError(self + "cache_dtype: DTYPE_I64", "BAD_DTYPE", "cache_dtype");
  ExpectError(self + "cache_dtype: DTYPE_BOOL", "BAD_DTYPE", "cache_dtype");
  ExpectError(self + "attention { rotary {} }", "BAD_OPTION", "attention.rotary.pairing");
  ExpectError(self + "attention { rotary { pairing: PAIRING_HALF_SPLIT theta: -1 } }", "BAD_OPTION",
              "attention.rotary.theta");
  ExpectError(self + "attention { rotary { pairing: PAIRING_HALF_SPLIT linear {} } }", "BAD_OPTION",
              "attention.rotary.linear.factor");
  ExpectError(self + "attention { query_norm {} }", "BAD_OPTION", "attention.query_norm.kind");
  ExpectError(self + "attention { key_norm { kind: KIND_RMS } }", "BAD_OPTION",
              "attention.key_norm.epsilon");
  ExpectError(self + "attention { window { left: -2 } }", "BAD_OPTION", "attention.window.left");
  ExpectError(self + "attention { scale: nan }", "BAD_OPTION", "attention.scale");
  ExpectError(self + "attention { alibi { slopes: 1 } }", "BAD_SHAPE", "attention.alibi.slopes");
}

TEST(LayerSpecFromProto, UnknownEnumValueIsRefused) {
  v1::LayerSpec proto = Proto(kSelf);
  proto.set_kind(static_cast<v1::LayerKind>(77));
  EXPECT_EQ(GetErrorDetail(LayerSpecFromProto(proto, "x").status())->field, "x.kind");
  proto = Proto(kSelf);
  proto.set_cache_dtype(static_cast<v1::DType>(7));
  EXPECT_EQ(GetErrorDetail(LayerSpecFromProto(proto, "x").status())->reason, "BAD_DTYPE");
  proto = Proto(kSelf);
  proto.mutable_attention()->mutable_rotary()->set_pairing(
      static_cast<v1::RotaryPosition::Pairing>(-1));
  EXPECT_EQ(GetErrorDetail(LayerSpecFromProto(proto, "x").status())->field,
            "x.attention.rotary.pairing");
  proto = Proto(kSelf);
  proto.mutable_attention()->mutable_query_norm()->set_kind(static_cast<v1::HeadNorm::Kind>(9));
  EXPECT_EQ(GetErrorDetail(LayerSpecFromProto(proto, "x").status())->field,
            "x.attention.query_norm.kind");
}

TEST(LayerSpecToProto, DefaultsAreWrittenOut) {
  const v1::LayerSpec proto = LayerSpecToProto(
      Spec("kind: LAYER_KIND_CROSS_ATTENTION input_size: 24 head_count: 4 output_projection: true "
           "attention { rotary { pairing: PAIRING_HALF_SPLIT "
           "yarn { factor: 4 original_max_tokens: 11 } } }"));
  const v1::LayerSpec expected = Proto(R"(
      kind: LAYER_KIND_CROSS_ATTENTION input_size: 24 context_size: 24 output_size: 24
      head_count: 4 kv_head_count: 4 key_head_size: 6 value_head_size: 6 output_projection: true
      cache_dtype: DTYPE_F32
      attention { window { left: -1 right: -1 }
                  rotary { pairing: PAIRING_HALF_SPLIT theta: 10000 dimension: 6
                           yarn { factor: 4 original_max_tokens: 11 beta_fast: 32 beta_slow: 1 } }
      })");
  EXPECT_FLOAT_EQ(proto.attention().scale(), 1.0f / std::sqrt(6.0f));
  v1::LayerSpec without_scale = proto;
  without_scale.mutable_attention()->clear_scale();
  EXPECT_TRUE(MessageDifferencer::Equals(without_scale, expected)) << proto.DebugString();
}

TEST(LayerSpecToProto, RoundTripGivesTheSameLayer) {
  for (const char* text : {
           "kind: LAYER_KIND_SELF_ATTENTION input_size: 24 head_count: 4 kv_head_count: 2 "
           "output_projection: true query_bias: true attention { causal: true softcap: 5 "
           "alibi {} sink_logits: [1, 2, 3, 4] }",
           "kind: LAYER_KIND_CROSS_ATTENTION input_size: 24 context_size: 5 "
           "attention { sinusoidal {} scale: 0 }",
           "kind: LAYER_KIND_CORE_ATTENTION head_count: 4 key_head_size: 6 value_head_size: 5 "
           "cache_dtype: DTYPE_F16 attention { window { left: 2 right: -1 } sink_token_count: 1 "
           "query_norm { kind: KIND_RMS epsilon: 1e-6 } key_norm { kind: KIND_LAYER "
           "epsilon: 1e-5 bias: [1, 2, 3, 4, 5, 6] } rotary { pairing: PAIRING_INTERLEAVED "
           "dimension: 4 llama3 { factor: 8 low_freq_factor: 1 high_freq_factor: 4 "
           "original_max_tokens: 13 } } }",
           "kind: LAYER_KIND_SELF_ATTENTION input_size: 8 attention { rotary { "
           "pairing: PAIRING_HALF_SPLIT dynamic_ntk { factor: 2 original_max_tokens: 9 } } }",
           "kind: LAYER_KIND_SELF_ATTENTION input_size: 8 attention { rotary { "
           "pairing: PAIRING_HALF_SPLIT linear { factor: 2 } } }",
       }) {
    const v1::LayerSpec once = LayerSpecToProto(Spec(text));
    const auto again = LayerSpecFromProto(once, "again");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(MessageDifferencer::Equals(LayerSpecToProto(*again), once)) << once.DebugString();
  }
}

TEST(DTypeFromProto, EveryTypeGoesThereAndBack) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kBool, DType::kI64, DType::kI8}) {
    EXPECT_EQ(DTypeFromProto(DTypeToProto(dtype), "x").value(), dtype);
    EXPECT_EQ(v1::DType_Name(DTypeToProto(dtype)), "DTYPE_" + std::string(DTypeName(dtype)));
  }
}

TEST(DTypeFromProto, UnsetAndUnknownAreRefused) {
  for (const int value : {0, 7, 8, -1, 1000}) {
    const auto dtype = DTypeFromProto(static_cast<v1::DType>(value), "x.dtype");
    const auto detail = GetErrorDetail(dtype.status());
    ASSERT_TRUE(detail.has_value()) << value;
    EXPECT_EQ(detail->reason, "BAD_DTYPE");
    EXPECT_EQ(detail->field, "x.dtype");
  }
}

}  // namespace
}  // namespace attnserve
