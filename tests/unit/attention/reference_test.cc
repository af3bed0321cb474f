// The reference against the worked example of the design and against closed forms.
#include "lib/attention/reference.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/attention/simple_layers.h"

namespace attnserve::reference {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

constexpr double kExact = 1e-14;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Reference, WorkedExampleUnscaled) {
  LayerSpec spec = CoreSpec(1, 1, 3, 3);
  spec.attention.scale = 1.0f;
  Input input;
  input.query_count = 1;
  input.query = {0.53, 0.34, 0.98};
  input.key = {0.34, 0.22, 0.54, 0.53, 0.34, 0.98, 0.29, 0.54, 0.93};
  input.value = input.key;
  const Output out = reference::Run(spec, {}, input);
  EXPECT_THAT(out.scores, Pointwise(DoubleNear(1e-5), {0.7842, 1.3569, 1.2487}));
  EXPECT_THAT(out.weights, Pointwise(DoubleNear(1e-7), {0.2291336, 0.4062648, 0.3646016}));
  EXPECT_THAT(out.output, Pointwise(DoubleNear(1e-5), {0.39896, 0.38542, 0.86095}));
  EXPECT_NEAR(std::exp(out.lse[0]), 2.1907 + 3.8841 + 3.4858, 1e-4);
}

TEST(Reference, WorkedExampleScaled) {
  Input input;
  input.query_count = 1;
  input.query = {0.53, 0.34, 0.98};
  input.key = {0.34, 0.22, 0.54, 0.53, 0.34, 0.98, 0.29, 0.54, 0.93};
  input.value = input.key;
  const Output out = reference::Run(CoreSpec(1, 1, 3, 3), {}, input);
  EXPECT_THAT(out.scores,
              Pointwise(DoubleNear(1e-5), {0.7842 / std::sqrt(3.0), 1.3569 / std::sqrt(3.0),
                                           1.2487 / std::sqrt(3.0)}));
}

TEST(Reference, EqualScoresGiveTheMean) {
  const Output out = reference::Run(CoreSpec(1, 1, 1, 1), {}, EqualScores(2, {1.0, 2.0, 6.0}));
  EXPECT_THAT(out.output, Pointwise(DoubleNear(kExact), {3.0, 3.0}));
  EXPECT_THAT(out.lse, Pointwise(DoubleNear(kExact), {std::log(3.0), std::log(3.0)}));
}

TEST(Reference, ScaleZeroIsAValue) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.scale = 0.0f;
  Input input = EqualScores(1, {1.0, 2.0, 6.0});
  input.query = {1.0};
  input.key = {5.0, -3.0, 1.0};
  EXPECT_THAT(reference::Run(spec, {}, input).output, Pointwise(DoubleNear(kExact), {3.0}));
}

TEST(Reference, NegativeScalePrefersOpposites) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.scale = -1.0f;
  Input input = EqualScores(1, {0.0, 1.0});
  input.query = {1.0};
  input.key = {0.0, -std::log(3.0)};
  EXPECT_THAT(reference::Run(spec, {}, input).output, Pointwise(DoubleNear(kExact), {0.75}));
}

TEST(Reference, CausalMeans) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.causal = true;
  Input input = EqualScores(3, {1.0, 2.0, 6.0});
  EXPECT_THAT(reference::Run(spec, {}, input).output,
              Pointwise(DoubleNear(kExact), {1.0, 1.5, 3.0}));
  input.causal_offset = 1;
  EXPECT_THAT(reference::Run(spec, {}, input).output,
              Pointwise(DoubleNear(kExact), {1.5, 3.0, 3.0}));
}

TEST(Reference, RowsBeforeANegativeOffsetAttendNothing) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.causal = true;
  Input input = EqualScores(3, {1.0, 2.0, 6.0});
  input.causal_offset = -2;
  const Output out = reference::Run(spec, {}, input);
  EXPECT_THAT(out.output, ElementsAre(0.0, 0.0, 1.0));
  EXPECT_THAT(out.lse, ElementsAre(-kInfinity, -kInfinity, 0.0));
  EXPECT_THAT(out.weights, ElementsAre(0, 0, 0, 0, 0, 0, 1, 0, 0));
}

TEST(Reference, WindowIsInclusiveOnBothSides) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.window = {1, 0};
  EXPECT_THAT(reference::Run(spec, {}, EqualScores(3, {1.0, 2.0, 6.0})).output,
              Pointwise(DoubleNear(kExact), {1.0, 1.5, 4.0}));
  spec.attention.window = {-1, 1};
  EXPECT_THAT(reference::Run(spec, {}, EqualScores(3, {1.0, 2.0, 6.0})).output,
              Pointwise(DoubleNear(kExact), {1.5, 3.0, 3.0}));
}

TEST(Reference, WindowCountsPositionsNotIndices) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.window = {1, 0};
  Input input = EqualScores(1, {1.0, 2.0, 6.0});
  input.query_positions = {10};
  input.key_positions = {9, 3, 10};
  EXPECT_THAT(reference::Run(spec, {}, input).output, Pointwise(DoubleNear(kExact), {3.5}));
}

TEST(Reference, SinkTokensStayInTheWindowButNotInTheFuture) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.causal = true;
  spec.attention.window = {0, 0};
  spec.attention.sink_token_count = 2;
  EXPECT_THAT(reference::Run(spec, {}, EqualScores(4, {1.0, 2.0, 6.0, 9.0})).output,
              Pointwise(DoubleNear(kExact), {1.0, 1.5, 3.0, 4.0}));
}

TEST(Reference, EveryMaskKindMasks) {
  const Input plain = EqualScores(1, {1.0, 2.0, 6.0});
  const LayerSpec spec = CoreSpec(1, 1, 1, 1);
  Input lengths = plain;
  lengths.valid_keys = 2;
  EXPECT_THAT(reference::Run(spec, {}, lengths).output, Pointwise(DoubleNear(kExact), {1.5}));
  Input key_mask = plain;
  key_mask.key_mask = {false, true, true};
  EXPECT_THAT(reference::Run(spec, {}, key_mask).output, Pointwise(DoubleNear(kExact), {4.0}));
  Input boolean = plain;
  boolean.bool_mask = {true, false, true};
  EXPECT_THAT(reference::Run(spec, {}, boolean).output, Pointwise(DoubleNear(kExact), {3.5}));
  Input additive = plain;
  additive.additive_mask = {std::log(3.0), 0.0, -kInfinity};
  EXPECT_THAT(reference::Run(spec, {}, additive).output, Pointwise(DoubleNear(kExact), {1.25}));
}

TEST(Reference, TreeMaskLeavesCachedTokensVisible) {
  Input input = EqualScores(2, {2.0, 6.0});
  input.past_key = {1.0};
  input.past_value = {1.0};
  input.causal_offset = 1;
  input.tree_mask = {true, false, false, true};  // two siblings
  EXPECT_THAT(reference::Run(CoreSpec(1, 1, 1, 1), {}, input).output,
              Pointwise(DoubleNear(kExact), {1.5, 3.5}));
}

TEST(Reference, SoftcapComesBeforeTheMask) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.scale = 1.0f;
  spec.attention.softcap = 0.5f;
  Input input = EqualScores(1, {1.0, 2.0, 6.0});
  input.query = {1.0};
  input.key = {100.0, kNan, -0.25};
  input.bool_mask = {true, false, true};
  const Output out = reference::Run(spec, {}, input);
  EXPECT_NEAR(out.softcapped[0], 0.5, kExact);
  EXPECT_NEAR(out.softcapped[2], -0.5 * std::tanh(0.5), kExact);
  EXPECT_EQ(out.masked[1], -kInfinity);
  const double low = std::exp(-0.5 * std::tanh(0.5) - 0.5);
  EXPECT_THAT(out.output, Pointwise(DoubleNear(kExact), {(1.0 + 6.0 * low) / (1.0 + low)}));
}

TEST(Reference, MaskedNanNeverLeaksAttendedNanDoes) {
  Input input = EqualScores(1, {1.0, kNan, 6.0});
  input.key_mask = {true, false, true};
  EXPECT_THAT(reference::Run(CoreSpec(1, 1, 1, 1), {}, input).output,
              Pointwise(DoubleNear(kExact), {3.5}));
  input.key_mask.clear();
  EXPECT_TRUE(std::isnan(reference::Run(CoreSpec(1, 1, 1, 1), {}, input).output[0]));
  input = EqualScores(1, {1.0, 2.0});
  input.key = {1.0, kNan};
  EXPECT_TRUE(std::isnan(reference::Run(CoreSpec(1, 1, 1, 1), {}, input).output[0]));
}

TEST(Reference, AlibiFallsWithDistanceOfPositions) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.position = AlibiPosition{{0.5f}};
  Input input = EqualScores(1, {1.0, 2.0, 6.0});
  input.query_positions = {7};
  input.key_positions = {4, 7, 9};
  EXPECT_THAT(reference::Run(spec, {}, input).masked,
              Pointwise(DoubleNear(kExact), {-1.5, 0.0, -1.0}));
}

TEST(Reference, SinkLogitTakesWeightAndNoValue) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.sink_logits = {static_cast<float>(std::log(2.0))};
  const Output out = reference::Run(spec, {}, EqualScores(1, {1.0, 3.0}));
  EXPECT_NEAR(out.output[0], 1.0, 1e-7);  // log 2 is rounded to float
  EXPECT_NEAR(out.lse[0], std::log(4.0), 1e-7);
}

TEST(Reference, QueryHeadsOfAGroupShareAKeyHead) {
  Input input;
  input.query_count = 1;
  input.query = {0.0, 0.0, 0.0, 0.0};
  input.key = {0.0, 0.0};
  input.value = {5.0, 7.0};
  EXPECT_THAT(reference::Run(CoreSpec(4, 2, 1, 1), {}, input).output,
              ElementsAre(5.0, 5.0, 7.0, 7.0));
}

TEST(Reference, DroppedWeightsScaleTheOthers) {
  Input input = EqualScores(1, {1.0, kNan, 6.0, 3.0});
  input.dropout_p = 0.5;
  input.dropped = [](int64_t, int64_t, int64_t key) { return key < 2; };
  const Output out = reference::Run(CoreSpec(1, 1, 1, 1), {}, input);
  EXPECT_THAT(out.weights, Pointwise(DoubleNear(kExact), {0.0, 0.0, 0.5, 0.5}));
  EXPECT_THAT(out.output, Pointwise(DoubleNear(kExact), {4.5}));
  EXPECT_NEAR(out.lse[0], std::log(4.0), kExact);
}

TEST(Reference, PaddedQueriesAreZeroDespiteTheBias) {
  LayerSpec spec;
  spec.input_size = 1;
  spec.output_size = 1;
  spec.head_count = spec.kv_head_count = 1;
  spec.key_head_size = spec.value_head_size = 1;
  spec.output_projection = spec.output_bias = true;
  Input input;
  input.query_count = 2;
  input.x = {1.0, 3.0};
  input.query_padding = {false, true};
  const Weights weights = {{0.0}, {1.0}, {2.0}, {10.0}, {}, {}, {}, {0.5}};
  EXPECT_THAT(reference::Run(spec, weights, input).output,
              Pointwise(DoubleNear(kExact), {40.5, 0.0}));
  input.query_padding.clear();
  input.valid_keys = 0;
  EXPECT_THAT(reference::Run(spec, weights, input).output, ElementsAre(0.5, 0.5));
}

TEST(Reference, CrossAttentionReadsTheContext) {
  LayerSpec spec;
  spec.kind = LayerKind::kCrossAttention;
  spec.input_size = 1;
  spec.context_size = 2;
  spec.output_size = 1;
  spec.head_count = spec.kv_head_count = 1;
  spec.key_head_size = spec.value_head_size = 1;
  Input input;
  input.query_count = 1;
  input.x = {1.0};
  input.context = {0.0, 1.0, std::log(3.0), 5.0};
  const Weights weights = {{1.0}, {1.0, 0.0}, {0.0, 1.0}, {}, {}, {}, {}, {}};
  const Output out = reference::Run(spec, weights, input);
  EXPECT_THAT(out.output, Pointwise(DoubleNear(kExact), {4.0}));
  Input cached = input;
  cached.context.clear();
  cached.past_key = out.present_key;
  cached.past_value = out.present_value;
  EXPECT_THAT(reference::Run(spec, weights, cached).output, Pointwise(DoubleNear(kExact), {4.0}));
}

TEST(Reference, CacheTypeRoundsNewKeysAndValuesOnly) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.cache_dtype = DType::kBF16;
  Input input = EqualScores(1, {1.001});
  input.past_key = {1.001};
  input.past_value = {1.001};
  const Output out = reference::Run(spec, {}, input);
  EXPECT_THAT(out.present_value, ElementsAre(1.001, 1.0));
  spec.cache_dtype = DType::kF16;
  EXPECT_EQ(reference::Run(spec, {}, input).present_value[1], 1.0009765625);
}

TEST(Reference, ChunksOverACacheEqualTheWhole) {
  LayerSpec spec;
  spec.input_size = 3;
  spec.output_size = 2;
  spec.head_count = 2;
  spec.kv_head_count = 1;
  spec.key_head_size = 2;
  spec.value_head_size = 1;
  spec.attention.causal = true;
  spec.attention.position = RotaryPosition{};
  const Weights weights = {{0.1, 0.2, 0.3, -0.4, 0.5, 0.6, -0.7, 0.8, 0.9, 1.0, -1.1, 1.2},
                           {0.3, -0.2, 0.5, 0.7, -0.9, 0.4},
                           {1.0, -2.0, 0.5},
                           {},
                           {},
                           {},
                           {},
                           {}};
  Input whole;
  whole.query_count = 3;
  whole.x = {1.0, 0.5, -0.5, 0.2, 0.1, 0.9, -1.0, 0.3, 0.8};
  const Output expected = reference::Run(spec, weights, whole);

  Input first = whole;
  first.query_count = 1;
  first.x.resize(3);
  const Output start = reference::Run(spec, weights, first);
  Input rest;
  rest.query_count = 2;
  rest.x.assign(whole.x.begin() + 3, whole.x.end());
  rest.past_key = start.present_key;
  rest.past_value = start.present_value;
  rest.causal_offset = 1;
  const Output end = reference::Run(spec, weights, rest);
  Values joined = start.output;
  joined.insert(joined.end(), end.output.begin(), end.output.end());
  EXPECT_THAT(joined, Pointwise(DoubleNear(kExact), expected.output));

  Input cached = rest;
  cached.past_key = end.present_key;
  cached.past_value = end.present_value;
  cached.keys_cached = true;
  EXPECT_THAT(reference::Run(spec, weights, cached).output,
              Pointwise(DoubleNear(kExact), end.output));
}

TEST(Reference, NoQueriesOnlyAppend) {
  const Output out = reference::Run(CoreSpec(1, 1, 1, 1), {}, EqualScores(0, {1.0, 2.0}));
  EXPECT_TRUE(out.output.empty());
  EXPECT_THAT(out.present_value, ElementsAre(1.0, 2.0));
}

}  // namespace
}  // namespace attnserve::reference
