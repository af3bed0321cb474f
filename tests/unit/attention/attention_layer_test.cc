#include "lib/attention/attention_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/errors.h"
#include "tests/unit/attention/layer_fixture.h"

namespace attnserve {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class AttentionLayerTest : public LayerFixture {};

TEST_F(AttentionLayerTest, FactsAboutALayer) {
  LayerSpec spec = SelfSpec(24, 4, 2);
  spec.value_head_size = 5;
  spec.cache_dtype = DType::kBF16;
  const auto layer = MakeLayer(spec);
  EXPECT_EQ(layer->spec().key_head_size, 6);
  EXPECT_EQ(layer->kv_layout().kv_heads, 2);
  EXPECT_EQ(layer->kv_layout().key_head_size, 6);
  EXPECT_EQ(layer->kv_layout().value_head_size, 5);
  EXPECT_EQ(layer->kv_layout().dtype, DType::kBF16);
  // Columns 24 -> 32, 12 + 10 -> 32 and 24 -> 32, each with a bias.
  EXPECT_EQ(layer->weight_bytes(), 4 * (32 * 24 + 32 + 32 * 24 + 32 + 32 * 20 + 32));
  EXPECT_EQ(MakeLayer(CoreSpec(2, 1, 4, 4))->weight_bytes(), 0);
}

TEST_F(AttentionLayerTest, RowsOfEachKind) {
  LayerPass pass;
  pass.x.rows = 3;
  pass.context.rows = 5;
  pass.query.tokens = 7;
  pass.key.tokens = 9;
  LayerSpec cross = SelfSpec(16, 2, 2);
  cross.kind = LayerKind::kCrossAttention;
  const auto self_layer = MakeLayer(SelfSpec(16, 2, 2));
  const auto cross_layer = MakeLayer(cross);
  const auto core_layer = MakeLayer(CoreSpec(2, 2, 8, 8));
  EXPECT_EQ(self_layer->key_rows(pass), 3);
  EXPECT_EQ(self_layer->query_rows(pass), 3);
  EXPECT_EQ(cross_layer->key_rows(pass), 5);
  EXPECT_EQ(cross_layer->query_rows(pass), 3);
  EXPECT_EQ(core_layer->key_rows(pass), 9);
  EXPECT_EQ(core_layer->query_rows(pass), 7);
}

// Heads with gaps between them, full of NaN, and in both orders.
TEST_F(AttentionLayerTest, HeadsMayLieApart) {
  constexpr int64_t kTokens = 20, kHeads = 3, kSize = 10;
  const auto layer = MakeLayer(CoreSpec(kHeads, kHeads, kSize, kSize));
  const std::vector<float> expected = Whole(*layer, kTokens, 4);
  for (const bool head_major : {false, true}) {
    LayerSession session(*layer, &pool_, kTokens, 4);
    LayerPass& pass = session.Begin(0, kTokens);
    const int64_t head_stride = head_major ? kTokens * 13 + 5 : 13;
    const int64_t token_stride = head_major ? 13 : 13 * kHeads + 5;
    std::vector<std::vector<float>> spread;
    for (HeadsView* view : {&pass.query, &pass.key, &pass.value}) {
      std::vector<float> values(static_cast<size_t>(kTokens * kHeads * 20), kNan);
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t h = 0; h < kHeads; ++h) {
          std::copy_n(static_cast<const float*>(view->data) + (t * kHeads + h) * kSize, kSize,
                      values.begin() + t * token_stride + h * head_stride);
        }
      }
      spread.push_back(std::move(values));
      view->data = spread.back().data();
      view->token_stride = token_stride;
      view->head_stride = head_stride;
    }
    session.Finish(inline_runner_, workspace_);
    EXPECT_TRUE(SameBits(session.output(), expected));
  }
}

TEST_F(AttentionLayerTest, OutputsBetweenTheTargetsRowsAreLeftAlone) {
  constexpr int64_t kTokens = 9, kHeads = 2, kSize = 5;
  const auto layer = MakeLayer(CoreSpec(kHeads, kHeads, kSize, kSize));
  const std::vector<float> expected = Whole(*layer, kTokens, 4);
  LayerSession session(*layer, &pool_, kTokens, 4);
  LayerPass& pass = session.Begin(0, kTokens);
  std::vector<float> target(kTokens * kHeads * 10, 77.0f);
  pass.output = {DType::kF32, target.data(), 7, kTokens * 8};
  session.Finish(inline_runner_, workspace_);
  std::vector<float> expected_target(target.size(), 77.0f);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      std::copy_n(expected.begin() + (t * kHeads + h) * kSize, kSize,
                  expected_target.begin() + t * 7 + h * kTokens * 8);
    }
  }
  EXPECT_TRUE(SameBits(target, expected_target));
}

// Inputs exact in 16 bits: the result is the F32 result, rounded once.
TEST_F(AttentionLayerTest, NarrowInputsAndOutputsAreConvertedOnce) {
  constexpr int64_t kTokens = 33;
  const auto layer = MakeLayer(RotaryLayer());
  const int64_t width = layer->spec().output_size;
  const std::vector<float> expected = Whole(*layer, kTokens, 6);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    LayerSession session(*layer, &pool_, kTokens, 6);
    LayerPass& pass = session.Begin(0, kTokens);
    const std::vector<uint8_t> x = Stored(session.x(), dtype);
    std::vector<uint8_t> output(static_cast<size_t>(kTokens * width) * 2 + 1, 0xff);
    pass.x.dtype = dtype;
    pass.x.data = x.data();
    pass.output = {dtype, output.data() + 1, width, 0};  // misaligned
    session.Finish(inline_runner_, workspace_);
    output.erase(output.begin());
    EXPECT_EQ(output, Stored(expected, dtype));
  }
}

// Aligned floats are read where they lie, others are copied first: no bit of difference.
TEST_F(AttentionLayerTest, InputsMayLieAtAnyAddress) {
  constexpr int64_t kTokens = 33;
  LayerSpec rotated = CoreSpec(4, 2, 16, 16);
  rotated.attention.position = RotaryPosition();
  LayerSpec added = SelfSpec(32, 4, 2);
  added.attention.position = SinusoidalPosition();
  for (const LayerSpec& spec : {SelfSpec(32, 4, 2), added, CoreSpec(4, 2, 16, 16), rotated}) {
    const auto layer = MakeLayer(spec);
    const std::vector<float> expected = Whole(*layer, kTokens, 6);
    LayerSession session(*layer, &pool_, kTokens, 6);
    LayerPass& pass = session.Begin(0, kTokens);
    std::vector<std::vector<uint8_t>> moved;
    const auto move = [&](const std::vector<float>& values, const void** data) {
      moved.emplace_back(values.size() * sizeof(float) + 1);
      std::memcpy(moved.back().data() + 1, values.data(), values.size() * sizeof(float));
      *data = moved.back().data() + 1;
    };
    move(session.x(), &pass.x.data);
    move(session.q(), &pass.query.data);
    move(session.v(), &pass.value.data);
    session.Finish(inline_runner_, workspace_);
    EXPECT_TRUE(SameBits(session.output(), expected));
  }
}

TEST_F(AttentionLayerTest, StagesChangeNoBitAndAreTheOutputs) {
  constexpr int64_t kTokens = 40;
  LayerSpec spec = CoreSpec(4, 2, 16, 16);
  spec.attention.causal = true;
  const auto layer = MakeLayer(spec);
  const std::vector<float> expected = Whole(*layer, kTokens, 8);
  LayerSession session(*layer, &pool_, kTokens, 8);
  LayerPass& pass = session.Begin(0, kTokens);
  std::vector<float> context(kTokens * 4 * 16), weights(kTokens * 4 * kTokens), lse(kTokens * 4);
  pass.stages = {{Stage::kWeights, DType::kF32, weights.data()},
                 {Stage::kContext, DType::kF32, context.data()},
                 {Stage::kLse, DType::kF32, lse.data()}};
  ThreadRunner runner(3);
  session.Finish(runner, workspace_);
  EXPECT_TRUE(SameBits(session.output(), expected));
  for (size_t h = 0; h < 4; ++h) {
    for (size_t t = 0; t < kTokens; ++t) {
      EXPECT_EQ(std::memcmp(&context[(h * kTokens + t) * 16], &expected[(t * 4 + h) * 16], 64), 0);
      double sum = 0.0;
      for (size_t j = 0; j < kTokens; ++j) {
        const float weight = weights[(h * kTokens + t) * kTokens + j];
        EXPECT_EQ(weight > 0.0f, j <= t);
        sum += weight;
      }
      // LSE is rounded to 2^-24 of itself, exp to 2 ulp.
      EXPECT_NEAR(sum, 1.0, 0x1p-22 + 0x1p-23 * std::fabs(lse[h * kTokens + t]));
    }
  }
}

TEST_F(AttentionLayerTest, PaddedQueriesGiveZerosDespiteNanAndBias) {
  constexpr int64_t kTokens = 6;
  LayerSpec spec = SelfSpec(16, 2, 2);
  spec.attention.causal = false;
  const auto layer = MakeLayer(spec);
  LayerSession full(*layer, &pool_, kTokens - 2, 8);
  full.Step(0, kTokens - 2, inline_runner_, workspace_);

  LayerSession session(*layer, &pool_, kTokens, 8);
  std::fill(session.x().end() - 2 * 16, session.x().end(), kNan);
  LayerPass& pass = session.Begin(0, kTokens);
  pass.masks.valid_keys = pass.masks.valid_queries = kTokens - 2;
  std::vector<float> masked(kTokens * 2 * kTokens), weights(masked.size());
  std::vector<float> lse(kTokens * 2), context(kTokens * 2 * 8);
  pass.stages = {{Stage::kMasked, DType::kF32, masked.data()},
                 {Stage::kWeights, DType::kF32, weights.data()},
                 {Stage::kLse, DType::kF32, lse.data()},
                 {Stage::kContext, DType::kF32, context.data()}};
  session.Finish(inline_runner_, workspace_);
  std::vector<float> expected = full.output();
  expected.resize(kTokens * 16, 0.0f);
  EXPECT_TRUE(SameBits(session.output(), expected));
  EXPECT_EQ(pass.masked_rows, 0);
  EXPECT_EQ(pass.nonfinite_values, 0);
  for (size_t h = 0; h < 2; ++h) {
    for (size_t t = kTokens - 2; t < kTokens; ++t) {
      const size_t row = h * kTokens + t;
      EXPECT_EQ(lse[row], -kInfinity);
      const auto line = [&](const std::vector<float>& values, size_t width) {
        return std::vector<float>(&values[row * width], &values[row * width] + width);
      };
      EXPECT_THAT(line(masked, kTokens), Each(-kInfinity));
      EXPECT_THAT(line(weights, kTokens), Each(0.0f));
      EXPECT_THAT(line(context, 8), Each(0.0f));
    }
  }
}

TEST_F(AttentionLayerTest, CountsRowsWithNothingToAttendAndValuesThatAreNotFinite) {
  LayerSpec spec = CoreSpec(2, 1, 4, 3);
  spec.attention.causal = true;
  const auto layer = MakeLayer(spec);
  LayerSession session(*layer, &pool_, 5, 1);
  std::fill(session.v().begin(), session.v().end(), 1e5f);
  session.v().back() = kNan;  // seen by the last query only, in the last element of either head
  LayerPass& pass = session.Begin(0, 5);
  pass.masks.causal_offset = -2;  // queries 0 and 1 see nothing
  session.Finish(inline_runner_, workspace_);
  EXPECT_EQ(pass.masked_rows, 4);
  EXPECT_EQ(pass.nonfinite_values, 0);

  pass.masks.causal_offset = 0;
  pass.masked_rows = 0;
  std::vector<uint16_t> narrow(5 * 6);
  pass.output = {DType::kF16, narrow.data(), 6, 3};
  LayerSession::ExpectOk(layer->Attend({session.QueryRows()}, inline_runner_, workspace_));
  EXPECT_EQ(pass.masked_rows, 0);
  EXPECT_EQ(pass.nonfinite_values, 30) << "1e5 overflows F16";
  pass.nonfinite_values = 0;
  std::vector<float> wide(5 * 6);
  pass.output = {DType::kF32, wide.data(), 6, 3};
  LayerSession::ExpectOk(layer->Attend({session.QueryRows()}, inline_runner_, workspace_));
  LayerSession::ExpectOk(layer->Attend({{&pass, 4, 5}}, inline_runner_, workspace_));
  EXPECT_EQ(pass.nonfinite_values, 4) << "counts of several calls add up";
}

TEST_F(AttentionLayerTest, NothingToDoIsLegal) {
  const auto layer = MakeLayer(CoreSpec(2, 2, 4, 4));
  LayerSession::ExpectOk(layer->AppendKeys({}, inline_runner_, workspace_));
  LayerSession::ExpectOk(layer->Attend({}, inline_runner_, workspace_));
  LayerSession session(*layer, &pool_, 3, 1);
  session.Step(0, 0, inline_runner_, workspace_);
  LayerPass& pass = session.Begin(0, 3);
  pass.query.tokens = 0;  // appends only
  pass.query.data = nullptr;
  pass.output.data = nullptr;
  session.Finish(inline_runner_, workspace_);
  EXPECT_EQ(session.cache().length(), 3);
}

TEST_F(AttentionLayerTest, QueriesWithoutAnyKeyGiveZeros) {
  const auto layer = MakeLayer(CoreSpec(2, 2, 4, 4));
  LayerSession session(*layer, &pool_, 3, 1);
  LayerPass& pass = session.Begin(0, 3);
  session.cache().Truncate(0);
  pass.key.tokens = pass.value.tokens = 0;
  float lse[6];
  pass.stages = {{Stage::kLse, DType::kF32, lse}, {Stage::kScores, DType::kF32, nullptr}};
  session.Finish(inline_runner_, workspace_);
  EXPECT_THAT(session.output(), Each(0.0f));
  EXPECT_THAT(std::vector<float>(lse, lse + 6), Each(-kInfinity));
  EXPECT_EQ(pass.masked_rows, 6);
}

TEST_F(AttentionLayerTest, ContextIsProjectedOnce) {
  LayerSpec spec = SelfSpec(16, 4, 2);
  spec.kind = LayerKind::kCrossAttention;
  spec.context_size = 12;
  spec.attention.causal = false;
  spec.attention.position = SinusoidalPosition();
  const auto layer = MakeLayer(spec);
  const std::vector<float> x = Numbers(5 * 16, 1), context = Numbers(70 * 12, 2);
  const auto run = [&](const std::vector<std::pair<int64_t, int64_t>>& steps) {
    KvSequence cache(layer->kv_layout(), &pool_);
    EXPECT_TRUE(cache.Reserve(70).ok());
    cache.Extend(70, nullptr);
    std::vector<float> output(5 * 16);
    for (const auto& [begin, end] : steps) {
      LayerPass pass;
      pass.cache = &cache;
      pass.x = {DType::kF32, x.data() + begin * 16, end - begin, 16};
      pass.query_position_base = begin;
      if (begin == 0) pass.context = {DType::kF32, context.data(), 70, 12};
      pass.output = {DType::kF32, output.data() + begin * 16, 16, 0};
      const PassRows keys = {&pass, 0, layer->key_rows(pass)};
      LayerSession::ExpectOk(layer->AppendKeys({keys}, inline_runner_, workspace_));
      LayerSession::ExpectOk(layer->Attend({{&pass, 0, end - begin}}, inline_runner_, workspace_));
    }
    return output;
  };
  const std::vector<float> whole = run({{0, 5}});
  EXPECT_TRUE(SameBits(run({{0, 1}, {1, 2}, {2, 5}}), whole));
  EXPECT_GT(*std::max_element(whole.begin(), whole.end()), 0.0f);
}

// A change to weights that fit, and the weight named.
struct BadWeights {
  std::string field;
  std::string text;
  void (*change)(LayerWeights*);
};

TEST_F(AttentionLayerTest, WeightsThatDoNotFitAreNamed) {
  LayerSpec spec = SelfSpec(8, 2, 1);
  ASSERT_TRUE(CompleteLayerSpec("", &spec).ok());
  const std::vector<float> numbers = Numbers(64, 1);
  const auto view = [&](int64_t in, int64_t out) {
    return WeightView{DType::kF32, numbers.data(), in, out, out, 1};
  };
  const BadWeights cases[] = {
      {"query", "[9, 8]; expected [8, 8]", [](LayerWeights* w) { w->query.out = 9; }},
      {"key", "[4, 7]; expected [4, 8]", [](LayerWeights* w) { w->key.in = 7; }},
      {"value", "[0, 0]", [](LayerWeights* w) { w->value = {}; }},
      {"output", "[8, 4]", [](LayerWeights* w) { w->output.in = 4; }},
      {"query_bias", "3 elements; expected 8", [](LayerWeights* w) { w->query_bias.resize(3); }},
      {"key_bias", "0 elements; expected 4", [](LayerWeights* w) { w->key_bias.clear(); }},
      {"value_bias", "5 elements", [](LayerWeights* w) { w->value_bias.resize(5); }},
      {"output_bias", "9 elements", [](LayerWeights* w) { w->output_bias.resize(9); }},
  };
  for (const BadWeights& bad : cases) {
    LayerWeights weights;
    weights.query = weights.output = view(8, 8);
    weights.key = weights.value = view(8, 4);
    weights.query_bias = weights.output_bias = Numbers(8, 1);
    weights.key_bias = weights.value_bias = Numbers(4, 1);
    EXPECT_TRUE(AttentionLayer::Create(spec, weights, GemmBackend::kNative).ok());
    bad.change(&weights);
    const auto layer = AttentionLayer::Create(spec, weights, GemmBackend::kNative);
    ASSERT_FALSE(layer.ok()) << bad.field;
    const auto detail = GetErrorDetail(layer.status());
    EXPECT_EQ(detail->reason, "BAD_SHAPE");
    EXPECT_EQ(detail->field, bad.field);
    EXPECT_THAT(std::string(layer.status().message()), HasSubstr(bad.text));
  }
}

}  // namespace
}  // namespace attnserve
