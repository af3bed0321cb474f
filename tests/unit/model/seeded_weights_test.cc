#include "lib/model/seeded_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace attnserve {
namespace {

LayerSpec Completed(LayerKind kind, bool with_output) {
  LayerSpec spec;
  spec.kind = kind;
  spec.input_size = 12;
  if (kind == LayerKind::kCrossAttention) spec.context_size = 7;
  spec.head_count = 3;
  spec.value_head_size = 5;
  spec.output_projection = with_output;
  spec.query_bias = spec.value_bias = true;
  EXPECT_EQ(CompleteLayerSpec("x", &spec), absl::OkStatus());
  return spec;
}

// The values a server of any machine must draw; computed with Python's integers.
TEST(SeededNormal, KnownValues) {
  EXPECT_EQ(SeededNormal(0, 0, 0), -34904.0 / 65536.0);
  EXPECT_EQ(SeededNormal(1, 0, 0), -49954.0 / 65536.0);
  EXPECT_EQ(SeededNormal(42, 7, 123456789), 55319.0 / 65536.0);
  EXPECT_EQ(SeededNormal(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}), 14075.0 / 65536.0);
}

// Kolmogorov-Smirnov against the normal distribution. The sum of twelve uniform numbers is within
// 0.0024 of it; the sample's own distance exceeds 1.95 / sqrt(n) with a probability of 0.001.
TEST(SeededNormal, IsNormallyDistributed) {
  constexpr size_t kCount = 200000;
  std::vector<double> sample;
  for (size_t i = 0; i < kCount; ++i) sample.push_back(SeededNormal(5, 3, i));
  std::sort(sample.begin(), sample.end());
  double distance = 0.0;
  for (size_t i = 0; i < kCount; ++i) {
    const double expected = 0.5 * std::erfc(-sample[i] / std::sqrt(2.0));
    distance = std::max(distance, std::fabs(expected - (static_cast<double>(i) + 0.5) / kCount));
  }
  EXPECT_LT(distance, 0.0024 + 1.95 / std::sqrt(static_cast<double>(kCount)));
}

TEST(SeededNormal, SeedsStreamsAndNeighboursAreUncorrelated) {
  constexpr int kCount = 100000;
  double neighbours = 0.0, streams = 0.0, seeds = 0.0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double value = SeededNormal(5, 3, i);
    neighbours += value * SeededNormal(5, 3, i + 1);
    streams += value * SeededNormal(5, 4, i);
    seeds += value * SeededNormal(6, 3, i);
  }
  // A sum of n products of independent standard normal numbers has deviation sqrt(n).
  const double limit = 4.0 * std::sqrt(static_cast<double>(kCount));
  EXPECT_LT(std::fabs(neighbours), limit);
  EXPECT_LT(std::fabs(streams), limit);
  EXPECT_LT(std::fabs(seeds), limit);
}

TEST(SeededLayer, HasTheSizesOfItsSpec) {
  for (const LayerKind kind : {LayerKind::kSelfAttention, LayerKind::kCrossAttention}) {
    for (const bool with_output : {false, true}) {
      const LayerSpec spec = Completed(kind, with_output);
      const SeededLayer layer = MakeSeededLayer(spec, 9, 2);
      const LayerWeights& weights = layer.weights;
      const int64_t context = kind == LayerKind::kCrossAttention ? 7 : 12;
      EXPECT_EQ(weights.query.in, 12);
      EXPECT_EQ(weights.query.out, 12);
      EXPECT_EQ(weights.key.in, context);
      EXPECT_EQ(weights.key.out, 12);
      EXPECT_EQ(weights.value.in, context);
      EXPECT_EQ(weights.value.out, 15);
      EXPECT_EQ(weights.query_bias.size(), 12u);
      EXPECT_TRUE(weights.key_bias.empty());
      EXPECT_EQ(weights.value_bias.size(), 15u);
      EXPECT_TRUE(weights.output_bias.empty());
      EXPECT_EQ(weights.output.data != nullptr, with_output);
      if (with_output) {
        EXPECT_EQ(weights.output.in, 15);
        EXPECT_EQ(weights.output.out, 12);
      }
    }
  }
}

TEST(SeededLayer, ElementsAreThoseOfTheirStreams) {
  const LayerSpec spec = Completed(LayerKind::kCrossAttention, true);
  const SeededLayer layer = MakeSeededLayer(spec, 9, 2);
  const auto expect = [](const WeightView& view, uint64_t stream) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(view.in));
    for (int64_t out = 0; out < view.out; ++out) {
      for (int64_t in = 0; in < view.in; ++in) {
        const float* data = static_cast<const float*>(view.data);
        const uint64_t index = static_cast<uint64_t>(out * view.in + in);
        EXPECT_EQ(data[in * view.in_stride + out * view.out_stride],
                  static_cast<float>(SeededNormal(9, stream, index) * deviation));
      }
    }
  };
  expect(layer.weights.query, 16);
  expect(layer.weights.key, 17);
  expect(layer.weights.value, 18);
  expect(layer.weights.output, 19);
  EXPECT_EQ(layer.weights.query_bias[3],
            static_cast<float>(SeededNormal(9, 20, 3) / std::sqrt(12.0)));
}

}  // namespace
}  // namespace attnserve
