// The reference's positions and norms against numbers worked out by hand from the papers' and
// Hugging Face's formulas.
#include "lib/attention/reference_positions.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnserve::reference {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

constexpr double kExact = 1e-14;  // a few roundings of doubles near 1

RotaryPosition Rotary(double theta) {
  RotaryPosition rotary;
  rotary.theta = theta;
  return rotary;
}

// Expects every pair to be turned by position * frequency and stretched by `factor`.
void ExpectTurns(const RotaryPosition& rotary, int64_t position,
                 const std::vector<double>& frequencies, double factor = 1.0) {
  const int64_t dimension = 2 * static_cast<int64_t>(frequencies.size());
  const std::vector<Rotation> table = RotaryTable(rotary, dimension, position);
  ASSERT_EQ(table.size(), frequencies.size());
  for (size_t i = 0; i < table.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    EXPECT_NEAR(table[i].cosine, factor * std::cos(angle), kExact) << "pair " << i;
    EXPECT_NEAR(table[i].sine, factor * std::sin(angle), kExact) << "pair " << i;
  }
}

TEST(SinusoidalReference, FollowsThePaper) {
  // d = 4: frequencies 1 and 1/100.
  EXPECT_DOUBLE_EQ(SinusoidalElement(10000.0, 4, 3, 0), std::sin(3.0));
  EXPECT_DOUBLE_EQ(SinusoidalElement(10000.0, 4, 3, 1), std::cos(3.0));
  EXPECT_DOUBLE_EQ(SinusoidalElement(10000.0, 4, 3, 2), std::sin(0.03));
  EXPECT_DOUBLE_EQ(SinusoidalElement(10000.0, 4, 3, 3), std::cos(0.03));
}

TEST(SinusoidalReference, OddSizeEndsWithASine) {
  EXPECT_DOUBLE_EQ(SinusoidalElement(10000.0, 5, 7, 4), std::sin(7.0 / std::pow(10000.0, 0.8)));
}

TEST(RotaryReference, PlainFrequencies) {
  ExpectTurns(Rotary(10000.0), 11, {1.0, 0.01});
  ExpectTurns(Rotary(10000.0), 0, {1.0, 0.1, 0.01, 0.001});
}

TEST(RotaryReference, LinearScalingDividesPositions) {
  RotaryPosition rotary = Rotary(10000.0);
  rotary.scaling = LinearScaling{4.0};
  ExpectTurns(rotary, 20, {1.0 / 4.0, 0.01 / 4.0});
}

TEST(RotaryReference, DynamicNtkLeavesTheTrainedLengthAlone) {
  RotaryPosition rotary = Rotary(10000.0);
  rotary.scaling = DynamicNtkScaling{2.0, 8};
  ExpectTurns(rotary, 0, {1.0, 0.01});
  ExpectTurns(rotary, 7, {1.0, 0.01});
}

TEST(RotaryReference, DynamicNtkBaseGrowsWithTheOwnPosition) {
  // Position 15 is token 16: 2 * 16 / 8 - 1 = 3, theta' = 10000 * 3^(4 / 2) = 90000.
  RotaryPosition rotary = Rotary(10000.0);
  rotary.scaling = DynamicNtkScaling{2.0, 8};
  ExpectTurns(rotary, 15, {1.0, 1.0 / 300.0});
}

TEST(RotaryReference, DynamicNtkOfOnePairHasNoBaseToGrow) {
  RotaryPosition rotary = Rotary(10000.0);
  rotary.scaling = DynamicNtkScaling{2.0, 8};
  ExpectTurns(rotary, 100, {1.0});
}

TEST(RotaryReference, YarnRampsBetweenInterpolationAndExtrapolation) {
  // d = 8, L = 64: 32 rotations fit at pair 8 ln(64 / 64 pi) / (2 ln 10000) = -0.497, floor and
  // clamp 0; one rotation at 1.008, ceil 2. Ramp 0, 1/2, 1, 1 over frequencies 1, 0.1, 0.01, 0.001.
  RotaryPosition rotary = Rotary(10000.0);
  rotary.scaling = YarnScaling{4.0, 64, 32.0, 1.0, std::nullopt};
  ExpectTurns(rotary, 13, {1.0, 0.1 * (0.5 / 4.0 + 0.5), 0.01 / 4.0, 0.001 / 4.0},
              0.1 * std::log(4.0) + 1.0);
}

TEST(RotaryReference, YarnAttentionFactorCanBeGiven) {
  RotaryPosition rotary = Rotary(10000.0);
  rotary.scaling = YarnScaling{4.0, 64, 32.0, 1.0, 0.75};
  ExpectTurns(rotary, 13, {1.0, 0.0625, 0.0025, 0.00025}, 0.75);
}

TEST(RotaryReference, Llama3KeepsSmoothsAndStretches) {
  // d = 6, theta = 10^6: wavelengths 2 pi, 200 pi, 20000 pi = 6.3, 628.3, 62832. L = 1024: below
  // 1024 / 4 kept, above 1024 stretched, between smoothed by (1024 / 628.3 - 1) / 3 = 0.20991.
  RotaryPosition rotary = Rotary(1e6);
  rotary.scaling = Llama3Scaling{8.0, 1.0, 4.0, 1024};
  const double smooth = (1024.0 * 0.01 / 6.283185307179586 - 1.0) / 3.0;
  EXPECT_NEAR(smooth, 0.20991, 1e-5);
  ExpectTurns(rotary, 29, {1.0, (1.0 - smooth) * 0.01 / 8.0 + smooth * 0.01, 1e-4 / 8.0});
}

TEST(RotaryReference, HalfSplitPairsLieHalfADimensionApart) {
  RotaryPosition rotary = Rotary(10000.0);
  std::vector<double> head = {1.0, 0.0, 0.0, 2.0, 9.0};
  rotary.dimension = 4;
  ApplyRotary(rotary, {1}, 1, 5, &head);
  EXPECT_THAT(head, Pointwise(DoubleNear(kExact), {std::cos(1.0), -2.0 * std::sin(0.01),
                                                   std::sin(1.0), 2.0 * std::cos(0.01), 9.0}));
}

TEST(RotaryReference, InterleavedPairsAreNeighbours) {
  RotaryPosition rotary = Rotary(10000.0);
  rotary.pairing = RotaryPosition::Pairing::kInterleaved;
  std::vector<double> head = {1.0, 0.0, 0.0, 2.0};
  ApplyRotary(rotary, {1}, 1, 4, &head);
  EXPECT_THAT(head, Pointwise(DoubleNear(kExact), {std::cos(1.0), std::sin(1.0),
                                                   -2.0 * std::sin(0.01), 2.0 * std::cos(0.01)}));
}

TEST(RotaryReference, DotProductsDependOnTheDistanceOnly) {
  const RotaryPosition rotary = Rotary(10000.0);
  const auto dot_at = [&](int64_t query_position, int64_t key_position) {
    std::vector<double> q = {0.3, -1.2, 0.7, 0.9, -0.1, 0.4};
    std::vector<double> k = {1.1, 0.2, -0.8, 0.5, 0.6, -1.3};
    ApplyRotary(rotary, {query_position}, 1, 6, &q);
    ApplyRotary(rotary, {key_position}, 1, 6, &k);
    double dot = 0.0;
    for (size_t i = 0; i < q.size(); ++i) dot += q[i] * k[i];
    return dot;
  };
  EXPECT_NEAR(dot_at(5, 2), dot_at(105, 102), 1e-12);
  EXPECT_GT(std::fabs(dot_at(5, 2) - dot_at(5, 3)), 1e-3);
}

TEST(AlibiReference, PowerOfTwoHeads) {
  EXPECT_THAT(AlibiSlopesOf({}, 1), ElementsAre(1.0 / 256.0));
  EXPECT_THAT(AlibiSlopesOf({}, 4), ElementsAre(1.0 / 4.0, 1.0 / 16.0, 1.0 / 64.0, 1.0 / 256.0));
}

TEST(AlibiReference, OtherHeadCountsInterleave) {
  EXPECT_THAT(AlibiSlopesOf({}, 3), ElementsAre(1.0 / 16.0, 1.0 / 256.0, 1.0 / 4.0));
  const double root = std::sqrt(0.5);
  EXPECT_THAT(
      AlibiSlopesOf({}, 12),
      Pointwise(DoubleNear(kExact), {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125,
                                     0.00390625, root, root / 2.0, root / 4.0, root / 8.0}));
}

TEST(AlibiReference, OwnSlopesWin) {
  EXPECT_THAT(AlibiSlopesOf({{0.5f, 3.0f}}, 2), ElementsAre(0.5, 3.0));
}

TEST(HeadNormReference, RootMeanSquare) {
  HeadNorm norm;
  norm.kind = HeadNorm::Kind::kRms;
  norm.epsilon = 0.5f;
  norm.weight = {2.0f, 10.0f};
  std::vector<double> heads = {3.0, 4.0, 0.0, 0.0};
  ApplyHeadNorm(norm, 2, &heads);
  const double deviation = std::sqrt(12.5 + 0.5);
  EXPECT_THAT(heads, Pointwise(DoubleNear(kExact), {6.0 / deviation, 40.0 / deviation, 0.0, 0.0}));
}

TEST(HeadNormReference, LayerNorm) {
  HeadNorm norm;
  norm.kind = HeadNorm::Kind::kLayer;
  norm.epsilon = 0.75f;
  norm.bias = {1.0f, -1.0f};
  std::vector<double> heads = {5.0, 6.0};
  ApplyHeadNorm(norm, 2, &heads);
  EXPECT_THAT(heads, Pointwise(DoubleNear(kExact), {0.5, -0.5}));
}

}  // namespace
}  // namespace attnserve::reference
