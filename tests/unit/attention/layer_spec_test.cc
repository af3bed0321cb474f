#include "lib/attention/layer_spec.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/errors.h"

namespace attnserve {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

LayerSpec SelfAttention(int64_t input_size, int64_t heads) {
  LayerSpec spec;
  spec.input_size = input_size;
  spec.head_count = heads;
  spec.output_projection = true;
  return spec;
}

LayerSpec CoreAttention(int64_t heads, int64_t key_head_size) {
  LayerSpec spec;
  spec.kind = LayerKind::kCoreAttention;
  spec.head_count = heads;
  spec.key_head_size = key_head_size;
  return spec;
}

LayerSpec Completed(LayerSpec spec) {
  const absl::Status status = CompleteLayerSpec("layer", &spec);
  EXPECT_TRUE(status.ok()) << status;
  return spec;
}

TEST(CompleteLayerSpec, SelfAttentionDefaults) {
  LayerSpec spec;
  spec.input_size = 48;
  spec = Completed(spec);
  EXPECT_EQ(spec.head_count, 1);
  EXPECT_EQ(spec.kv_head_count, 1);
  EXPECT_EQ(spec.key_head_size, 48);
  EXPECT_EQ(spec.value_head_size, 48);
  EXPECT_EQ(spec.output_size, 48);
  EXPECT_EQ(spec.context_size, 0);
  EXPECT_EQ(spec.cache_dtype, DType::kF32);
}

TEST(CompleteLayerSpec, OutputProjectionDefaultsToTheInputsWidth) {
  LayerSpec spec = SelfAttention(48, 4);
  spec.value_head_size = 5;
  EXPECT_EQ(Completed(spec).output_size, 48);
  spec.output_projection = false;
  EXPECT_EQ(Completed(spec).output_size, 20);
}

TEST(CompleteLayerSpec, EveryWidthMayDiffer) {
  LayerSpec spec = SelfAttention(10, 6);
  spec.kv_head_count = 2;
  spec.key_head_size = 7;
  spec.value_head_size = 3;
  spec.output_size = 11;
  spec = Completed(spec);
  EXPECT_EQ(spec.group_size(), 3);
  EXPECT_EQ(spec.query_width(), 42);
  EXPECT_EQ(spec.key_width(), 14);
  EXPECT_EQ(spec.value_width(), 6);
  EXPECT_EQ(spec.context_width(), 18);
  EXPECT_EQ(spec.output_size, 11);
}

TEST(CompleteLayerSpec, CrossAttentionContextDefaultsToTheInputsWidth) {
  LayerSpec spec = SelfAttention(48, 4);
  spec.kind = LayerKind::kCrossAttention;
  EXPECT_EQ(Completed(spec).context_size, 48);
  spec.context_size = 20;
  EXPECT_EQ(Completed(spec).context_size, 20);
}

TEST(CompleteLayerSpec, CoreAttentionDefaults) {
  LayerSpec spec = CoreAttention(6, 8);
  spec.value_head_size = 4;
  spec = Completed(spec);
  EXPECT_EQ(spec.kv_head_count, 6);
  EXPECT_EQ(spec.output_size, 24);
  EXPECT_EQ(spec.input_size, 0);
}

TEST(CompleteLayerSpec, SixteenHeadsOf768AreLegal) {
  EXPECT_EQ(Completed(SelfAttention(768, 16)).key_head_size, 48);
}

TEST(CompleteLayerSpec, IsIdempotent) {
  LayerSpec spec = SelfAttention(64, 4);
  spec.attention.position = RotaryPosition();
  const LayerSpec once = Completed(spec);
  const LayerSpec twice = Completed(once);
  EXPECT_EQ(once.output_size, twice.output_size);
  EXPECT_EQ(std::get<RotaryPosition>(twice.attention.position).dimension, 16);
}

TEST(CompleteLayerSpec, FillsPositionDefaults) {
  LayerSpec spec = CoreAttention(4, 8);
  spec.attention.position = AlibiPosition();
  EXPECT_EQ(std::get<AlibiPosition>(Completed(spec).attention.position).slopes, AlibiSlopes(4));
  RotaryPosition rotary;
  rotary.dimension = 6;
  spec.attention.position = rotary;
  EXPECT_EQ(std::get<RotaryPosition>(Completed(spec).attention.position).dimension, 6);
}

TEST(CompleteLayerSpec, LimitsThemselvesAreLegal) {
  LayerSpec spec = SelfAttention(kMaxWidth, kMaxHeads);
  EXPECT_EQ(Completed(spec).key_head_size, kMaxWidth / kMaxHeads);
  Completed(CoreAttention(kMaxWidth / kMaxHeadSize, kMaxHeadSize));
}

// A change to a valid layer (input_size 64, 8 heads, output projection), and how it is refused.
struct BadLayer {
  std::string field;
  std::string reason;
  std::string text;  // part of the message
  std::function<void(LayerSpec&)> change;
};

void ExpectRefused(const BadLayer& bad, LayerSpec spec) {
  SCOPED_TRACE(bad.field + " " + bad.text);
  bad.change(spec);
  const absl::Status status = CompleteLayerSpec("layers[2]", &spec);
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const auto detail = GetErrorDetail(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field, "layers[2]." + bad.field);
  EXPECT_EQ(detail->reason, bad.reason);
  EXPECT_THAT(std::string(status.message()), HasSubstr(bad.text));
}

TEST(CompleteLayerSpec, RefusesBadSizes) {
  const BadLayer cases[] = {
      {"input_size", "BAD_SHAPE", "required", [](LayerSpec& s) { s.input_size = 0; }},
      {"input_size", "BAD_SHAPE", "-1", [](LayerSpec& s) { s.input_size = -1; }},
      {"input_size", "TOO_LARGE", "1048577", [](LayerSpec& s) { s.input_size = kMaxWidth + 1; }},
      {"input_size", "TOO_LARGE", "9223372036854775807",
       [](LayerSpec& s) { s.input_size = std::numeric_limits<int64_t>::max(); }},
      {"context_size", "BAD_SHAPE", "only cross-attention",
       [](LayerSpec& s) { s.context_size = 64; }},
      {"context_size", "BAD_SHAPE", "-4", [](LayerSpec& s) { s.context_size = -4; }},
      {"output_size", "BAD_SHAPE", "-2", [](LayerSpec& s) { s.output_size = -2; }},
      {"output_size", "TOO_LARGE", "at most 1048576",
       [](LayerSpec& s) { s.output_size = kMaxWidth + 1; }},
      {"output_size", "BAD_SHAPE", "8 * 8 = 64",
       [](LayerSpec& s) {
         s.output_projection = false;
         s.output_size = 63;
       }},
      {"head_count", "BAD_SHAPE", "-8", [](LayerSpec& s) { s.head_count = -8; }},
      {"head_count", "TOO_LARGE", "4097", [](LayerSpec& s) { s.head_count = kMaxHeads + 1; }},
      {"head_count", "BAD_SHAPE",
       "input_size 770 is not divisible by head_count 16: 770 = 48 * 16 + 2",
       [](LayerSpec& s) {
         s.input_size = 770;
         s.head_count = 16;
       }},
      {"kv_head_count", "BAD_SHAPE", "8 = 2 * 3 + 2", [](LayerSpec& s) { s.kv_head_count = 3; }},
      {"kv_head_count", "BAD_SHAPE", "8 = 0 * 16 + 8", [](LayerSpec& s) { s.kv_head_count = 16; }},
      {"kv_head_count", "BAD_SHAPE", "-1", [](LayerSpec& s) { s.kv_head_count = -1; }},
      {"key_head_size", "BAD_SHAPE", "-1", [](LayerSpec& s) { s.key_head_size = -1; }},
      {"key_head_size", "TOO_LARGE", "4097",
       [](LayerSpec& s) { s.key_head_size = kMaxHeadSize + 1; }},
      {"key_head_size", "TOO_LARGE", "8192",
       [](LayerSpec& s) {
         s.input_size = 8192;
         s.head_count = 1;
       }},
      {"value_head_size", "BAD_SHAPE", "-1", [](LayerSpec& s) { s.value_head_size = -1; }},
      {"value_head_size", "TOO_LARGE", "4097",
       [](LayerSpec& s) { s.value_head_size = kMaxHeadSize + 1; }},
      {"key_head_size", "TOO_LARGE", "4096 * 4096 = 16777216",
       [](LayerSpec& s) {
         s.head_count = kMaxHeads;
         s.key_head_size = kMaxHeadSize;
       }},
      {"value_head_size", "TOO_LARGE", "1024 * 2048 = 2097152",
       [](LayerSpec& s) {
         s.head_count = 1024;
         s.key_head_size = 16;
         s.value_head_size = 2048;
       }},
      {"cache_dtype", "BAD_DTYPE", "BOOL", [](LayerSpec& s) { s.cache_dtype = DType::kBool; }},
      {"cache_dtype", "BAD_DTYPE", "I64", [](LayerSpec& s) { s.cache_dtype = DType::kI64; }},
      {"output_bias", "BAD_OPTION", "without output_projection",
       [](LayerSpec& s) {
         s.output_projection = false;
         s.output_bias = true;
       }},
  };
  for (const BadLayer& bad : cases) ExpectRefused(bad, SelfAttention(64, 8));
}

TEST(CompleteLayerSpec, RefusesWeightsOfCoreAttention) {
  const BadLayer cases[] = {
      {"input_size", "BAD_SHAPE", "leave it unset", [](LayerSpec& s) { s.input_size = 64; }},
      {"context_size", "BAD_SHAPE", "leave it unset", [](LayerSpec& s) { s.context_size = 64; }},
      {"key_head_size", "BAD_SHAPE", "unset", [](LayerSpec& s) { s.key_head_size = 0; }},
      {"output_size", "BAD_SHAPE", "8 * 16 = 128", [](LayerSpec& s) { s.output_size = 64; }},
      {"query_bias", "BAD_OPTION", "no weights", [](LayerSpec& s) { s.query_bias = true; }},
      {"key_bias", "BAD_OPTION", "no weights", [](LayerSpec& s) { s.key_bias = true; }},
      {"value_bias", "BAD_OPTION", "no weights", [](LayerSpec& s) { s.value_bias = true; }},
      {"output_projection", "BAD_OPTION", "no weights",
       [](LayerSpec& s) { s.output_projection = true; }},
      {"output_bias", "BAD_OPTION", "no weights", [](LayerSpec& s) { s.output_bias = true; }},
      {"attention.sinusoidal", "BAD_OPTION", "does not have",
       [](LayerSpec& s) { s.attention.position = SinusoidalPosition(); }},
  };
  for (const BadLayer& bad : cases) ExpectRefused(bad, CoreAttention(8, 16));
}

// Changes the rotary position of a layer with heads of 8.
std::function<void(LayerSpec&)> Rotary(const std::function<void(RotaryPosition&)>& change) {
  return [change](LayerSpec& spec) {
    RotaryPosition rotary;
    change(rotary);
    spec.attention.position = rotary;
  };
}

// The same with a scaling that is legal before the change.
template <typename Scaling>
std::function<void(LayerSpec&)> Scaled(const std::function<void(Scaling&)>& change) {
  return Rotary([change](RotaryPosition& rotary) {
    Scaling scaling;
    scaling.factor = 2.0;
    if constexpr (!std::is_same_v<Scaling, LinearScaling>) scaling.original_max_tokens = 100;
    change(scaling);
    rotary.scaling = scaling;
  });
}

TEST(CheckAttentionOptions, RefusesBadOptions) {
  const BadLayer cases[] = {
      {"window.left", "BAD_OPTION", "-2", [](LayerSpec& s) { s.attention.window.left = -2; }},
      {"window.right", "BAD_OPTION", "-9", [](LayerSpec& s) { s.attention.window.right = -9; }},
      {"sink_token_count", "BAD_OPTION", "-1",
       [](LayerSpec& s) { s.attention.sink_token_count = -1; }},
      {"scale", "BAD_OPTION", "nan", [](LayerSpec& s) { s.attention.scale = kNan; }},
      {"scale", "BAD_OPTION", "inf", [](LayerSpec& s) { s.attention.scale = -kInfinity; }},
      {"scale", "BAD_OPTION", "3e+38", [](LayerSpec& s) { s.attention.scale = 3e38f; }},
      {"softcap", "BAD_OPTION", "-1", [](LayerSpec& s) { s.attention.softcap = -1.0f; }},
      {"softcap", "BAD_OPTION", "inf", [](LayerSpec& s) { s.attention.softcap = kInfinity; }},
      {"softcap", "BAD_OPTION", "nan", [](LayerSpec& s) { s.attention.softcap = kNan; }},
      {"sink_logits", "BAD_SHAPE", "has 7 elements, expected head_count = 8",
       [](LayerSpec& s) { s.attention.sink_logits.assign(7, 0.0f); }},
      {"sink_logits[3]", "BAD_OPTION", "inf",
       [](LayerSpec& s) {
         s.attention.sink_logits.assign(8, 0.0f);
         s.attention.sink_logits[3] = kInfinity;
       }},
      {"query_norm.kind", "BAD_OPTION", "unset",
       [](LayerSpec& s) { s.attention.query_norm.weight.assign(8, 1.0f); }},
      {"query_norm.epsilon", "BAD_OPTION", "above 0",
       [](LayerSpec& s) {
         s.attention.query_norm.kind = HeadNorm::Kind::kRms;
         s.attention.query_norm.epsilon = 0.0f;
       }},
      {"key_norm.epsilon", "BAD_OPTION", "nan",
       [](LayerSpec& s) {
         s.attention.key_norm.kind = HeadNorm::Kind::kLayer;
         s.attention.key_norm.epsilon = kNan;
       }},
      {"key_norm.weight", "BAD_SHAPE", "has 9 elements, expected key_head_size = 8",
       [](LayerSpec& s) {
         s.attention.key_norm.kind = HeadNorm::Kind::kRms;
         s.attention.key_norm.weight.assign(9, 1.0f);
       }},
      {"key_norm.weight[0]", "BAD_OPTION", "nan",
       [](LayerSpec& s) {
         s.attention.key_norm.kind = HeadNorm::Kind::kRms;
         s.attention.key_norm.weight.assign(8, kNan);
       }},
      {"key_norm.bias", "BAD_OPTION", "only layer normalisation",
       [](LayerSpec& s) {
         s.attention.key_norm.kind = HeadNorm::Kind::kRms;
         s.attention.key_norm.bias.assign(8, 1.0f);
       }},
      {"query_norm.bias", "BAD_SHAPE", "has 3 elements",
       [](LayerSpec& s) {
         s.attention.query_norm.kind = HeadNorm::Kind::kLayer;
         s.attention.query_norm.bias.assign(3, 1.0f);
       }},
      {"sinusoidal.base", "BAD_OPTION", "above 0",
       [](LayerSpec& s) { s.attention.position = SinusoidalPosition{0.0}; }},
      {"alibi.slopes", "BAD_SHAPE", "has 9 elements, expected head_count = 8",
       [](LayerSpec& s) { s.attention.position = AlibiPosition{std::vector<float>(9, 1.0f)}; }},
      {"alibi.slopes[7]", "BAD_OPTION", "nan",
       [](LayerSpec& s) {
         AlibiPosition alibi{std::vector<float>(8, 1.0f)};
         alibi.slopes[7] = kNan;
         s.attention.position = alibi;
       }},
      {"alibi.slopes[0]", "BAD_OPTION", "-3e+38",
       [](LayerSpec& s) { s.attention.position = AlibiPosition{std::vector<float>(8, -3e38f)}; }},
      {"rotary.theta", "BAD_OPTION", "at least 1e-30",
       Rotary([](auto& r) { r.theta = std::numeric_limits<double>::denorm_min(); })},
      {"sinusoidal.base", "BAD_OPTION", "from -1e+30 to 1e+30",
       [](LayerSpec& s) { s.attention.position = SinusoidalPosition{1e300}; }},
      {"rotary.yarn.factor", "BAD_OPTION", "1e+300",
       Scaled<YarnScaling>([](auto& s) { s.factor = 1e300; })},
      {"rotary.yarn.attention_factor", "BAD_OPTION", "to 1e+06",
       Scaled<YarnScaling>([](auto& s) { s.attention_factor = 1e7; })},
      {"rotary.theta", "BAD_OPTION", "above 0", Rotary([](auto& r) { r.theta = 0.0; })},
      {"rotary.theta", "BAD_OPTION", "inf", Rotary([](auto& r) { r.theta = HUGE_VAL; })},
      {"rotary.dimension", "BAD_OPTION", "is 5", Rotary([](auto& r) { r.dimension = 5; })},
      {"rotary.dimension", "BAD_OPTION", "is 10", Rotary([](auto& r) { r.dimension = 10; })},
      {"rotary.dimension", "BAD_OPTION", "is -2", Rotary([](auto& r) { r.dimension = -2; })},
      {"rotary.dimension", "BAD_OPTION", "key_head_size = 7",
       [](LayerSpec& s) {
         s.key_head_size = 7;
         s.attention.position = RotaryPosition();
       }},
      {"rotary.linear.factor", "BAD_OPTION", "at least 1",
       Scaled<LinearScaling>([](auto& s) { s.factor = 0.5; })},
      {"rotary.dynamic_ntk.factor", "BAD_OPTION", "nan",
       Scaled<DynamicNtkScaling>([](auto& s) { s.factor = NAN; })},
      {"rotary.dynamic_ntk.original_max_tokens", "BAD_OPTION", "is 0",
       Scaled<DynamicNtkScaling>([](auto& s) { s.original_max_tokens = 0; })},
      {"rotary.yarn.factor", "BAD_OPTION", "at least 1",
       Scaled<YarnScaling>([](auto& s) { s.factor = 0.0; })},
      {"rotary.yarn.original_max_tokens", "BAD_OPTION", "is -5",
       Scaled<YarnScaling>([](auto& s) { s.original_max_tokens = -5; })},
      {"rotary.yarn.beta_slow", "BAD_OPTION", "above 0",
       Scaled<YarnScaling>([](auto& s) { s.beta_slow = 0.0; })},
      {"rotary.yarn.beta_fast", "BAD_OPTION", "at least 1",
       Scaled<YarnScaling>([](auto& s) { s.beta_fast = 0.5; })},
      {"rotary.yarn.attention_factor", "BAD_OPTION", "above 0",
       Scaled<YarnScaling>([](auto& s) { s.attention_factor = 0.0; })},
      {"rotary.theta", "BAD_OPTION", "above 1",
       [](LayerSpec& s) {
         Scaled<YarnScaling>([](auto&) {})(s);
         std::get<RotaryPosition>(s.attention.position).theta = 1.0;
       }},
      {"rotary.llama3.factor", "BAD_OPTION", "at least 1",
       Scaled<Llama3Scaling>([](auto& s) { s.factor = -1.0; })},
      {"rotary.llama3.low_freq_factor", "BAD_OPTION", "above 0",
       Scaled<Llama3Scaling>([](auto& s) { s.low_freq_factor = 0.0; })},
      {"rotary.llama3.high_freq_factor", "BAD_OPTION", "above 1",
       Scaled<Llama3Scaling>([](auto& s) { s.high_freq_factor = 1.0; })},
      {"rotary.llama3.original_max_tokens", "BAD_OPTION", "is 0",
       Scaled<Llama3Scaling>([](auto& s) { s.original_max_tokens = 0; })},
  };
  for (BadLayer bad : cases) {
    bad.field = "attention." + bad.field;
    ExpectRefused(bad, SelfAttention(64, 8));
  }
}

TEST(CheckAttentionOptions, EveryScalingHasLegalValues) {
  for (const auto& change :
       {Scaled<LinearScaling>([](auto&) {}), Scaled<DynamicNtkScaling>([](auto&) {}),
        Scaled<YarnScaling>([](auto&) {}), Scaled<Llama3Scaling>([](auto&) {})}) {
    LayerSpec spec = SelfAttention(64, 8);
    change(spec);
    Completed(spec);
  }
}

TEST(CheckAttentionOptions, ExtremeButLegal) {
  LayerSpec spec = SelfAttention(64, 8);
  spec.attention.window = {0, std::numeric_limits<int64_t>::max()};
  spec.attention.sink_token_count = std::numeric_limits<int64_t>::max();
  spec.attention.scale = -0.0f;
  spec.attention.sink_logits.assign(8, -1e30f);
  Completed(spec);
}

TEST(CheckAttentionOptions, EmptyParentGivesABareField) {
  AttentionOptions options;
  options.softcap = -1.0f;
  const absl::Status status = CheckAttentionOptions("", 2, 4, LayerKind::kCoreAttention, options);
  EXPECT_EQ(GetErrorDetail(status)->field, "softcap");
}

TEST(ScoreScale, DefaultIsOneOverTheRoot) {
  AttentionOptions options;
  EXPECT_EQ(ScoreScale(options, 64), 0.125f);
  EXPECT_FLOAT_EQ(ScoreScale(options, 3), 0.57735026919f);
  options.scale = 0.0f;
  EXPECT_EQ(ScoreScale(options, 64), 0.0f);
}

TEST(AlibiSlopes, PowerOfTwo) {
  EXPECT_EQ(AlibiSlopes(1), std::vector<float>({0x1p-8f}));
  EXPECT_EQ(AlibiSlopes(8), std::vector<float>({0x1p-1f, 0x1p-2f, 0x1p-3f, 0x1p-4f, 0x1p-5f,
                                                0x1p-6f, 0x1p-7f, 0x1p-8f}));
}

TEST(AlibiSlopes, OtherCountsInterleaveTheNextPower) {
  // Four heads' sequence, then every second element of eight heads'.
  EXPECT_EQ(AlibiSlopes(6),
            std::vector<float>({0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f, 0x1p-3f}));
  EXPECT_EQ(AlibiSlopes(3), std::vector<float>({0x1p-4f, 0x1p-8f, 0x1p-2f}));
}

}  // namespace
}  // namespace attnserve
