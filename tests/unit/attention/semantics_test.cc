// One test for each mistake that tutorials make (numbered as in the design), run against the
// reference and against the real layer.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/attention/attention_layer.h"
#include "lib/attention/layer_spec.h"
#include "lib/attention/reference.h"
#include "lib/base/errors.h"
#include "tests/unit/attention/error_bound.h"
#include "tests/unit/attention/layer_harness.h"
#include "tests/unit/attention/simple_layers.h"

namespace attnserve {
namespace {

using reference::Input;
using reference::Values;
using reference::Weights;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::Pointwise;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kDouble = 1e-12;  // roundings of the reference and of the test's own arithmetic

double Largest(const Values& values) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// What one implementation answers, and how exact it must be.
struct Answer {
  std::string by;
  Values output, masked, weights, present_key, present_value;
  double tolerance = 0.0;  // of output and weights

  auto Near() const { return DoubleNear(tolerance); }
};

// The reference's and the layer's answers to one pass.
std::vector<Answer> Answers(const LayerSpec& spec, const Weights& weights, const Input& input,
                            RunPlan plan = {}) {
  const reference::Output out = reference::Run(spec, weights, input);
  const ErrorBounds bounds = BoundErrors(spec, weights, input, out, {});
  const double tolerance = kDouble + std::max(Largest(bounds.output), Largest(bounds.weights));
  std::vector<Answer> answers = {{"reference", out.output, out.masked, out.weights, out.present_key,
                                  out.present_value, kDouble}};
  LayerHarness harness(spec, weights);
  if (!harness.ok()) return answers;
  plan.stages = {Stage::kMasked, Stage::kWeights};
  LayerRun run = harness.Run(input, plan);
  answers.push_back({"layer", run.output, run.stages[Stage::kMasked], run.stages[Stage::kWeights],
                     run.present_key, run.present_value, tolerance});
  return answers;
}

// The same token by token over a cache.
std::vector<Answer> TokenByToken(const LayerSpec& spec, const Weights& weights,
                                 const Input& input) {
  Answer by_reference;
  by_reference.by = "reference, token by token";
  by_reference.tolerance = kDouble;
  RunPlan plan;
  Input past;
  const int64_t width = static_cast<int64_t>(input.x.size()) / input.query_count;
  for (int64_t t = 0; t < input.query_count; ++t) {
    Input token;
    token.query_count = 1;
    token.x.assign(input.x.begin() + t * width, input.x.begin() + (t + 1) * width);
    token.past_key = by_reference.present_key;
    token.past_value = by_reference.present_value;
    token.causal_offset = t;
    reference::Output out = reference::Run(spec, weights, token);
    by_reference.output.insert(by_reference.output.end(), out.output.begin(), out.output.end());
    by_reference.present_key = out.present_key;
    by_reference.present_value = out.present_value;
    plan.steps.push_back({t, t + 1});
  }
  std::vector<Answer> answers = {by_reference};
  for (Answer& answer : Answers(spec, weights, input, plan)) {
    if (answer.by != "layer") continue;
    answer.by = "layer, token by token";
    answers.push_back(std::move(answer));
  }
  return answers;
}

LayerSpec SelfSpec(int64_t input, int64_t heads, int64_t kv_heads, int64_t head_size) {
  LayerSpec spec = CoreSpec(heads, kv_heads, head_size, head_size);
  spec.kind = LayerKind::kSelfAttention;
  spec.input_size = input;
  return spec;
}

// Elements that look random and are exact in float.
Values Ramp(int64_t count, int64_t seed) {
  Values values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<double>((i * 37 + seed * 11) % 29 - 14) / 16.0);
  }
  return values;
}

TEST(TutorialMistake, N01_KeyPaddingMaskMasksKeysNotQueries) {
  Input input = EqualScores(3, {1.0, 2.0, 6.0});
  input.key_mask = {true, true, false};
  for (const Answer& answer : Answers(CoreSpec(1, 1, 1, 1), {}, input)) {
    SCOPED_TRACE(answer.by);
    EXPECT_THAT(answer.output, Pointwise(answer.Near(), {1.5, 1.5, 1.5}));
    EXPECT_THAT(answer.weights,
                Pointwise(answer.Near(), {0.5, 0.5, 0.0, 0.5, 0.5, 0.0, 0.5, 0.5, 0.0}));
  }
}

TEST(TutorialMistake, N02_CausalMaskHidesTheFutureNotThePast) {
  LayerSpec spec = CoreSpec(1, 1, 1, 1);
  spec.attention.causal = true;
  for (const Answer& answer : Answers(spec, {}, EqualScores(3, {1.0, 2.0, 6.0}))) {
    SCOPED_TRACE(answer.by);
    EXPECT_THAT(answer.output, Pointwise(answer.Near(), {1.0, 1.5, 3.0}));
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 3; ++j) EXPECT_EQ(answer.weights[i * 3 + j] > 0.0, j <= i);
    }
  }
}

TEST(TutorialMistake, N03_BoolMaskSelectsInsteadOfBeingAdded) {
  // Added to the scores, true would be worth a factor e and false would mask nothing.
  Input input = EqualScores(1, {1.0, 2.0, 6.0});
  input.bool_mask = {true, false, true};
  for (const Answer& answer : Answers(CoreSpec(1, 1, 1, 1), {}, input)) {
    SCOPED_TRACE(answer.by);
    EXPECT_EQ(answer.weights[1], 0.0);
    EXPECT_EQ(answer.masked[0], 0.0);
    EXPECT_THAT(answer.output, Pointwise(answer.Near(), {3.5}));
  }
}

TEST(TutorialMistake, N04_CacheGrowsAlongTokensNotHeads) {
  // Two key/value heads that hold 1, 2, 3 and 10, 20, 30 after three tokens.
  LayerSpec spec = SelfSpec(1, 2, 2, 1);
  spec.attention.causal = true;
  const Weights weights = {{0.0, 0.0}, {1.0, 10.0}, {1.0, 10.0}, {}, {}, {}, {}, {}};
  Input input;
  input.query_count = 3;
  input.x = {1.0, 2.0, 3.0};
  for (const Answer& answer : TokenByToken(spec, weights, input)) {
    SCOPED_TRACE(answer.by);
    EXPECT_THAT(answer.present_key, Pointwise(DoubleNear(0.0), {1.0, 10.0, 2.0, 20.0, 3.0, 30.0}));
    EXPECT_THAT(answer.present_value,
                Pointwise(DoubleNear(0.0), {1.0, 10.0, 2.0, 20.0, 3.0, 30.0}));
    EXPECT_THAT(answer.output, Pointwise(answer.Near(), {1.0, 10.0, 1.5, 15.0, 2.0, 20.0}));
  }
}

TEST(TutorialMistake, N05_CrossAttentionKeepsTheContextsLength) {
  LayerSpec spec = SelfSpec(2, 2, 1, 1);
  spec.kind = LayerKind::kCrossAttention;
  spec.context_size = 1;
  const Weights weights = {{0.0, 0.0, 0.0, 0.0}, {1.0}, {1.0}, {}, {}, {}, {}, {}};
  Input input;
  input.query_count = 2;
  input.x = {1.0, 2.0, 3.0, 4.0};
  input.context = {1.0, 2.0, 3.0, 4.0, 10.0};
  for (const Answer& answer : Answers(spec, weights, input)) {
    SCOPED_TRACE(answer.by);
    EXPECT_EQ(answer.present_key.size(), 5u);
    ASSERT_EQ(answer.weights.size(), 2u * 2u * 5u);
    EXPECT_THAT(answer.weights, Each(DoubleNear(0.2, answer.tolerance)));
    EXPECT_THAT(answer.output, Each(DoubleNear(4.0, answer.tolerance)));
  }
}

TEST(TutorialMistake, N06_SinusoidsHaveNoOddSizeAndNoLastPosition) {
  // Every token attends itself only and values are x: the output is x plus its encoding.
  constexpr int64_t kSize = 5;
  LayerSpec spec = SelfSpec(kSize, 1, 1, kSize);
  spec.attention.window = {0, 0};
  spec.attention.position = SinusoidalPosition{10000.0};
  Values identity(kSize * kSize, 0.0);
  for (size_t i = 0; i < kSize; ++i) identity[i * kSize + i] = 1.0;
  const Weights weights = {Values(25, 0.0), Values(25, 0.0), identity, {}, {}, {}, {}, {}};
  Input input;
  input.query_positions = {0, 511, 512, 100000, 5000000};
  input.key_positions = input.query_positions;
  input.query_count = static_cast<int64_t>(input.query_positions.size());
  input.x.assign(static_cast<size_t>(input.query_count * kSize), 0.25);
  Values expected;
  for (const int64_t position : input.query_positions) {
    const double p = static_cast<double>(position);
    expected.insert(expected.end(),
                    {std::sin(p), std::cos(p), std::sin(p / std::pow(10000.0, 0.4)),
                     std::cos(p / std::pow(10000.0, 0.4)), std::sin(p / std::pow(10000.0, 0.8))});
  }
  for (double& value : expected) value += 0.25;
  for (const Answer& answer : Answers(spec, weights, input)) {
    SCOPED_TRACE(answer.by);
    // sin of 5,000,000 / 10000^0.4 in double: the angle's own rounding.
    EXPECT_THAT(answer.output, Pointwise(DoubleNear(answer.tolerance + 5e6 * 0x1p-52), expected));
  }
}

TEST(TutorialMistake, N07_EveryMaskReachesTheKernel) {
  LayerSpec plain_spec = CoreSpec(2, 1, 3, 2);
  Input plain;
  plain.query_count = 3;
  plain.query = Ramp(3 * 2 * 3, 1);
  plain.key = Ramp(3 * 3, 2);
  plain.value = Ramp(3 * 2, 3);
  const auto keep = [](size_t count) { return std::vector<bool>(count, true); };

  struct Masked {
    std::string mask;
    std::function<void(LayerSpec*, Input*, RunPlan*)> apply;
  };
  const std::vector<Masked> kinds = {
      {"causal", [](LayerSpec* spec, Input*, RunPlan*) { spec->attention.causal = true; }},
      {"window",
       [](LayerSpec* spec, Input*, RunPlan*) {
         spec->attention.window = {1, -1};
       }},
      {"lengths", [](LayerSpec*, Input* input, RunPlan*) { input->valid_keys = 2; }},
      {"key mask",
       [&](LayerSpec*, Input* input, RunPlan*) {
         input->key_mask = keep(3);
         input->key_mask[1] = false;
       }},
      {"bool mask",
       [&](LayerSpec*, Input* input, RunPlan*) {
         input->bool_mask = keep(18);
         input->bool_mask[7] = false;
       }},
      {"bool mask for all heads",
       [&](LayerSpec*, Input* input, RunPlan* plan) {
         input->bool_mask = keep(18);
         input->bool_mask[4] = input->bool_mask[13] = false;
         plan->mask_broadcast_heads = true;
       }},
      {"additive mask",
       [](LayerSpec*, Input* input, RunPlan*) {
         input->additive_mask.assign(18, 0.0);
         input->additive_mask[5] = 1.5;
       }},
      {"additive mask, -inf",
       [](LayerSpec*, Input* input, RunPlan*) {
         input->additive_mask.assign(18, 0.0);
         input->additive_mask[5] = -kInfinity;
       }},
      {"additive mask, lowest F16",
       [](LayerSpec*, Input* input, RunPlan* plan) {
         input->additive_mask.assign(18, 0.0);
         input->additive_mask[5] = -kInfinity;
         plan->mask_dtype = DType::kF16;
         plan->mask_lowest = true;
       }},
      {"mask of fewer keys",
       [](LayerSpec*, Input* input, RunPlan* plan) {
         for (int i = 0; i < 6; ++i) {
           for (const bool attend : {true, true, false}) input->bool_mask.push_back(attend);
         }
         plan->mask_keys = 2;
       }},
      {"tree mask",
       [](LayerSpec*, Input* input, RunPlan*) {
         input->tree_mask = {true, false, false, true, true, false, true, false, true};
       }},
      {"query padding",
       [](LayerSpec*, Input* input, RunPlan*) {
         input->query_padding = {false, false, true};
       }},
  };
  const Values unmasked = reference::Run(plain_spec, {}, plain).output;
  for (const Masked& kind : kinds) {
    LayerSpec spec = plain_spec;
    Input input = plain;
    RunPlan plan;
    kind.apply(&spec, &input, &plan);
    const Values expected = reference::Run(spec, {}, input).output;
    for (const Answer& answer : Answers(spec, {}, input, plan)) {
      SCOPED_TRACE(kind.mask + ", " + answer.by);
      double change = 0.0;
      for (size_t i = 0; i < unmasked.size(); ++i) {
        change = std::max(change, std::fabs(answer.output[i] - unmasked[i]));
      }
      EXPECT_GT(change, 0.01);
      EXPECT_THAT(answer.output, Pointwise(answer.Near(), expected));
    }
  }
}

TEST(TutorialMistake, N08_ScoresAreDividedByTheRootOfTheHeadSize) {
  // q k = 64 and 0, d_k = 64: a score of 8, not of 1 (divided by d_k) or 64 (not at all).
  Input input;
  input.query_count = 1;
  input.query.assign(64, 1.0);
  input.key.assign(64, 1.0);
  input.key.resize(128, 0.0);
  input.value = {1.0, 0.0};
  for (const Answer& answer : Answers(CoreSpec(1, 1, 64, 1), {}, input)) {
    SCOPED_TRACE(answer.by);
    EXPECT_THAT(answer.masked, Pointwise(answer.Near(), {8.0, 0.0}));
    EXPECT_THAT(answer.output, Pointwise(answer.Near(), {1.0 / (1.0 + std::exp(-8.0))}));
  }
}

TEST(TutorialMistake, N09_OnlyARemainderIsAMisalignedWidth) {
  LayerSpec spec;
  spec.input_size = 768;
  spec.head_count = 16;
  ASSERT_TRUE(CompleteLayerSpec("layer", &spec).ok());
  EXPECT_EQ(spec.key_head_size, 48);
  const Weights weights = {
      Ramp(768 * 768, 1), Ramp(768 * 768, 2), Ramp(768 * 768, 3), {}, {}, {}, {}, {}};
  Input input;
  input.query_count = 2;
  input.x = Ramp(2 * 768, 4);
  const Values expected = reference::Run(spec, weights, input).output;
  ASSERT_EQ(expected.size(), 2u * 768u);
  for (const Answer& answer : Answers(spec, weights, input)) {
    SCOPED_TRACE(answer.by);
    EXPECT_THAT(answer.output, Pointwise(answer.Near(), expected));
  }

  LayerSpec remainder;
  remainder.input_size = 770;
  remainder.head_count = 16;
  const absl::Status status = CompleteLayerSpec("layer", &remainder);
  ASSERT_TRUE(GetErrorDetail(status).has_value());
  EXPECT_EQ(GetErrorDetail(status)->reason, "BAD_SHAPE");
}

TEST(TutorialMistake, N10_TheMaskComesBeforeTheSoftmax) {
  // The masked key would take nearly all of the weight: masked afterwards, the others keep almost
  // none and do not sum to 1.
  Input input = EqualScores(1, {1.0, 2.0, 6.0});
  input.query = {1.0};
  input.key = {0.0, 0.0, 20.0};
  input.valid_keys = 2;
  for (const Answer& answer : Answers(CoreSpec(1, 1, 1, 1), {}, input)) {
    SCOPED_TRACE(answer.by);
    EXPECT_THAT(answer.weights, Pointwise(answer.Near(), {0.5, 0.5, 0.0}));
    EXPECT_THAT(answer.output, Pointwise(answer.Near(), {1.5}));
  }
}

TEST(TutorialMistake, N11_MaskedPlacesAreMinusInfinityNotZero) {
  // Visible scores are -20: a masked score of 0 would win.
  Input input = EqualScores(1, {1.0, 2.0, 6.0});
  input.query = {1.0};
  input.key = {-20.0, -20.0, -20.0};
  input.key_mask = {true, true, false};
  for (const Answer& answer : Answers(CoreSpec(1, 1, 1, 1), {}, input)) {
    SCOPED_TRACE(answer.by);
    EXPECT_EQ(answer.masked[2], -kInfinity);
    EXPECT_THAT(answer.output, Pointwise(answer.Near(), {1.5}));
  }
}

TEST(TutorialMistake, N12_RotaryPositionsContinueAtTheCachedLength) {
  LayerSpec spec = SelfSpec(2, 1, 1, 2);
  spec.attention.causal = true;
  spec.attention.scale = 1.0f;
  spec.attention.position = RotaryPosition{};
  const Values identity = {1.0, 0.0, 0.0, 1.0};
  const Weights weights = {identity, identity, identity, {}, {}, {}, {}, {}};
  Input input;
  input.query_count = 3;
  input.x = {1.0, 0.0, 1.0, 0.0, 1.0, 0.0};
  const Values expected = reference::Run(spec, weights, input).output;
  Values keys;
  for (const double position : {0.0, 1.0, 2.0}) {
    keys.insert(keys.end(), {std::cos(position), std::sin(position)});
  }
  for (const Answer& answer : TokenByToken(spec, weights, input)) {
    SCOPED_TRACE(answer.by);
    EXPECT_THAT(answer.present_key, Pointwise(answer.Near(), keys));
    EXPECT_THAT(answer.output, Pointwise(answer.Near(), expected));
    if (answer.weights.empty()) continue;
    // Scores of the last token: cos 2, cos 1, cos 0.
    const double sum = std::exp(std::cos(2.0)) + std::exp(std::cos(1.0)) + std::exp(1.0);
    EXPECT_NEAR(answer.weights[6], std::exp(std::cos(2.0)) / sum, answer.tolerance);
  }
}

// The worked example of the design, unscaled and scaled.
TEST(WorkedExample, HelloShinySun) {
  Input input;
  input.query_count = 1;
  input.query = {0.53, 0.34, 0.98};
  input.key = {0.34, 0.22, 0.54, 0.53, 0.34, 0.98, 0.29, 0.54, 0.93};
  input.value = input.key;
  LayerSpec spec = CoreSpec(1, 1, 3, 3);
  for (const Answer& answer : Answers(spec, {}, input)) {
    SCOPED_TRACE(answer.by + ", scaled");
    EXPECT_THAT(answer.masked,
                Pointwise(DoubleNear(1e-5), {0.7842 / std::sqrt(3.0), 1.3569 / std::sqrt(3.0),
                                             1.2487 / std::sqrt(3.0)}));
  }
  spec.attention.scale = 1.0f;
  for (const Answer& answer : Answers(spec, {}, input)) {
    SCOPED_TRACE(answer.by);
    EXPECT_THAT(answer.masked, Pointwise(DoubleNear(1e-5), {0.7842, 1.3569, 1.2487}));
    EXPECT_THAT(answer.weights, Pointwise(DoubleNear(1e-6), {0.2291336, 0.4062648, 0.3646016}));
    EXPECT_THAT(answer.output, Pointwise(DoubleNear(1e-5), {0.39896, 0.38542, 0.86095}));
  }
}

}  // namespace
}  // namespace attnserve
