#include "lib/attention/positions.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace attnserve {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Half a unit in the last place of results up to 1 in F32, and what the angle's own roundings in
// double can move a sine: a few 2^-53 of the angle.
double Tolerance(double angle, double factor = 1.0) {
  return factor * (0x1p-24 * 1.001 + std::fabs(angle) * 0x1p-50);
}

// The textbook's angle of a pair at a position.
using Angle = std::function<double(int64_t position, int64_t pair)>;

void ExpectAngles(const RotaryPosition& rotary, int64_t key_head_size,
                  const std::vector<int64_t>& positions, const Angle& angle, double factor = 1.0) {
  const RotaryAngles angles(rotary, key_head_size);
  const size_t pairs = static_cast<size_t>(angles.pairs());
  std::vector<float> cosine(pairs + 1, -9.0f), sine(pairs + 1, -9.0f);
  for (const int64_t position : positions) {
    angles.At(position, cosine.data(), sine.data());
    for (size_t i = 0; i < pairs; ++i) {
      const double expected = angle(position, static_cast<int64_t>(i));
      SCOPED_TRACE("position " + std::to_string(position) + ", pair " + std::to_string(i));
      EXPECT_NEAR(cosine[i], factor * std::cos(expected), Tolerance(expected, factor));
      EXPECT_NEAR(sine[i], factor * std::sin(expected), Tolerance(expected, factor));
    }
    EXPECT_EQ(cosine[pairs], -9.0f);
    EXPECT_EQ(sine[pairs], -9.0f);
  }
}

double Plain(double theta, int64_t pair, int64_t dimension) {
  return std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(dimension));
}

TEST(RotaryAngles, PlainFrequencies) {
  for (const int64_t size : {2, 6, 64, 128}) {
    for (const double theta : {10000.0, 500000.0, 1.0, 0.5}) {
      RotaryPosition rotary;
      rotary.theta = theta;
      ExpectAngles(rotary, size, {-3, 0, 1, 2, 4095, 1000000}, [&](int64_t position, int64_t pair) {
        return static_cast<double>(position) * Plain(theta, pair, size);
      });
    }
  }
}

TEST(RotaryAngles, PartialDimensionCountsInTheExponent) {
  RotaryPosition rotary;
  rotary.dimension = 6;
  rotary.pairing = RotaryPosition::Pairing::kInterleaved;
  const RotaryAngles angles(rotary, 20);
  EXPECT_EQ(angles.dimension(), 6);
  EXPECT_EQ(angles.pairs(), 3);
  EXPECT_TRUE(angles.interleaved());
  ExpectAngles(rotary, 20, {5, 77}, [](int64_t position, int64_t pair) {
    return static_cast<double>(position) * Plain(10000.0, pair, 6);
  });
}

TEST(RotaryAngles, UnsetDimensionIsTheHead) {
  const RotaryAngles angles(RotaryPosition{}, 20);
  EXPECT_EQ(angles.dimension(), 20);
  EXPECT_FALSE(angles.interleaved());
}

TEST(RotaryAngles, LinearScalingDividesPositions) {
  RotaryPosition rotary;
  rotary.scaling = LinearScaling{4.0};
  ExpectAngles(rotary, 16, {1, 4, 9001}, [](int64_t position, int64_t pair) {
    return static_cast<double>(position) / 4.0 * Plain(10000.0, pair, 16);
  });
}

TEST(RotaryAngles, DynamicNtkGrowsWithTheOwnPosition) {
  for (const int64_t size : {2, 4, 64}) {
    RotaryPosition rotary;
    rotary.scaling = DynamicNtkScaling{2.0, 100};
    ExpectAngles(rotary, size, {0, 98, 99, 100, 101, 5000}, [&](int64_t position, int64_t pair) {
      // Pair 0 has frequency 1 whatever the base; a head of 2 has no other.
      if (pair == 0) return static_cast<double>(position);
      const double d = static_cast<double>(size);
      const double n = std::max<double>(100.0, static_cast<double>(position) + 1.0);
      const double theta = 10000.0 * std::pow(2.0 * n / 100.0 - 1.0, d / (d - 2.0));
      return static_cast<double>(position) * Plain(theta, pair, size);
    });
  }
}

TEST(RotaryAngles, LargestPositionIsDefined) {
  RotaryPosition rotary;
  rotary.scaling = DynamicNtkScaling{2.0, 100};
  const RotaryAngles angles(rotary, 4);
  float cosine[2], sine[2];
  angles.At(std::numeric_limits<int64_t>::max(), cosine, sine);
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(cosine[i] * cosine[i] + sine[i] * sine[i], 1.0f, 4 * 0x1p-24f);
  }
}

// Peng et al. 2023: frequencies that turn more than beta_fast times within the trained length stay,
// those that turn less than beta_slow times are divided by the factor.
TEST(RotaryAngles, YarnRamp) {
  constexpr int64_t kSize = 64, kTokens = 4096;
  constexpr double kTheta = 10000.0, kFactor = 8.0;
  RotaryPosition rotary;
  YarnScaling yarn;
  yarn.factor = kFactor;
  yarn.original_max_tokens = kTokens;
  rotary.scaling = yarn;
  const auto pair_of = [&](double rotations) {
    return kSize * std::log(kTokens / (rotations * 2.0 * kPi)) / (2.0 * std::log(kTheta));
  };
  const double low = std::floor(pair_of(32.0)), high = std::ceil(pair_of(1.0));
  ASSERT_GT(low, 0.0);
  ASSERT_LT(high, kSize / 2 - 1);
  ExpectAngles(
      rotary, kSize, {0, 1, 4095, 30000},
      [&](int64_t position, int64_t pair) {
        const double plain = Plain(kTheta, pair, kSize);
        const double i = static_cast<double>(pair);
        const double ramp = i <= low ? 0.0 : i >= high ? 1.0 : (i - low) / (high - low);
        return static_cast<double>(position) * (plain / kFactor * ramp + plain * (1.0 - ramp));
      },
      0.1 * std::log(kFactor) + 1.0);
}

TEST(RotaryAngles, YarnOfFactorOneChangesNothing) {
  RotaryPosition rotary;
  YarnScaling yarn;
  yarn.original_max_tokens = 64;
  rotary.scaling = yarn;
  ExpectAngles(rotary, 16, {1, 100}, [](int64_t position, int64_t pair) {
    return static_cast<double>(position) * Plain(10000.0, pair, 16);
  });
}

TEST(RotaryAngles, YarnAttentionFactorCanBeGiven) {
  RotaryPosition rotary;
  YarnScaling yarn;
  yarn.factor = 1.0;
  yarn.original_max_tokens = 64;
  yarn.attention_factor = 0.25;
  rotary.scaling = yarn;
  ExpectAngles(
      rotary, 16, {3},
      [](int64_t position, int64_t pair) {
        return static_cast<double>(position) * Plain(10000.0, pair, 16);
      },
      0.25);
}

TEST(RotaryAngles, Llama3KeepsSmoothsAndStretches) {
  constexpr int64_t kSize = 128;
  constexpr double kTheta = 500000.0, kTokens = 8192.0, kFactor = 8.0;
  RotaryPosition rotary;
  rotary.theta = kTheta;
  rotary.scaling = Llama3Scaling{kFactor, 1.0, 4.0, 8192};
  int kept = 0, smoothed = 0, stretched = 0;
  for (int64_t pair = 0; pair < kSize / 2; ++pair) {
    const double wavelength = 2.0 * kPi / Plain(kTheta, pair, kSize);
    ++(wavelength < kTokens / 4.0 ? kept : wavelength > kTokens ? stretched : smoothed);
  }
  ASSERT_GT(kept, 0);
  ASSERT_GT(smoothed, 0);
  ASSERT_GT(stretched, 0);
  ExpectAngles(rotary, kSize, {1, 131071}, [&](int64_t position, int64_t pair) {
    const double plain = Plain(kTheta, pair, kSize);
    const double wavelength = 2.0 * kPi / plain;
    double frequency = plain;
    if (wavelength > kTokens) {
      frequency = plain / kFactor;
    } else if (wavelength > kTokens / 4.0) {
      const double smooth = (kTokens / wavelength - 1.0) / 3.0;
      frequency = (1.0 - smooth) * plain / kFactor + smooth * plain;
    }
    return static_cast<double>(position) * frequency;
  });
}

TEST(Sinusoids, FollowThePaperForEverySize) {
  for (const int64_t size : {1, 2, 3, 7, 64, 129}) {
    for (const int64_t position :
         {int64_t{0}, int64_t{1}, int64_t{511}, int64_t{512}, int64_t{513}, int64_t{1} << 30}) {
      const Sinusoids sinusoids(10000.0, size);
      std::vector<float> x(static_cast<size_t>(size) + 1, 0.0f);
      x.back() = -9.0f;
      sinusoids.Add(position, x.data());
      for (int64_t i = 0; i < size; ++i) {
        const double angle = static_cast<double>(position) /
                             std::pow(10000.0, static_cast<double>(i / 2 * 2) / size);
        const double expected = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
        EXPECT_NEAR(x[static_cast<size_t>(i)], expected, Tolerance(angle)) << size << " " << i;
      }
      EXPECT_EQ(x.back(), -9.0f) << "written beyond the row";
    }
  }
}

TEST(Sinusoids, AreAddedToX) {
  const Sinusoids sinusoids(100.0, 2);
  float x[] = {8.0f, -16.0f};
  sinusoids.Add(3, x);
  EXPECT_EQ(x[0], 8.0f + static_cast<float>(std::sin(3.0)));
  EXPECT_EQ(x[1], -16.0f + static_cast<float>(std::cos(3.0)));
}

}  // namespace
}  // namespace attnserve
