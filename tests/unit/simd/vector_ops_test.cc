#include "lib/simd/vector_ops.h"

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/simd/targets_test_util.h"

namespace attnserve::simd {
namespace {

constexpr double kUnit = 0x1p-24;  // largest relative error of one float32 rounding
constexpr int64_t kSizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 80, 127, 128, 129};

std::vector<float> RandomFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(InstructionSet, NamesTheTargetInUse) {
  std::map<std::string, std::string> family;
  ForEachTarget([&] { family[InstructionSet()] = KernelFamily(); });
  EXPECT_EQ(family.size(), AvailableTargets().size());
  for (const char* fused : {"AVX2", "AVX3", "NEON"}) {
    if (family.count(fused) != 0) {
      EXPECT_EQ(family[fused], "fma");
    }
  }
  for (const char* separate : {"SSE2", "SSE4", "SCALAR", "EMU128"}) {
    if (family.count(separate) != 0) {
      EXPECT_EQ(family[separate], "mul-add");
    }
  }
}

TEST(AllFinite, FindsOneOddElementAnywhere) {
  const float infinity = std::numeric_limits<float>::infinity();
  ForEachTarget([&] {
    EXPECT_TRUE(AllFinite(nullptr, 0));
    for (const int64_t size : kSizes) {
      std::vector<float> values(static_cast<size_t>(size), -std::numeric_limits<float>::max());
      EXPECT_TRUE(AllFinite(values.data(), size));
      for (size_t i = 0; i < values.size(); ++i) {
        for (const float odd : {infinity, -infinity, std::nanf("")}) {
          values[i] = odd;
          ASSERT_FALSE(AllFinite(values.data(), size)) << i << " of " << size;
        }
        values[i] = std::numeric_limits<float>::denorm_min();
      }
      EXPECT_TRUE(AllFinite(values.data(), size));
    }
  });
}

TEST(Rotate, MatchesComplexProduct) {
  ForEachTarget([] {
    for (const int64_t dimension : {2, 4, 6, 14, 16, 18, 30, 32, 34, 64, 128, 130}) {
      for (const bool interleaved : {false, true}) {
        const size_t pairs = static_cast<size_t>(dimension / 2);
        const std::vector<float> before = RandomFloats(2 * pairs + 1, 1);
        const std::vector<float> angles = RandomFloats(pairs, 2);
        std::vector<float> cosine;
        std::vector<float> sine;
        for (const float angle : angles) {
          cosine.push_back(std::cos(angle));
          sine.push_back(std::sin(angle));
        }
        std::vector<float> head = before;
        Rotate(head.data(), dimension, interleaved, cosine.data(), sine.data());
        for (size_t i = 0; i < pairs; ++i) {
          const size_t first = interleaved ? 2 * i : i;
          const size_t second = interleaved ? 2 * i + 1 : i + pairs;
          const double a = static_cast<double>(before[first]);
          const double b = static_cast<double>(before[second]);
          const double c = static_cast<double>(cosine[i]);
          const double s = static_cast<double>(sine[i]);
          // Two products and a sum, one rounding each.
          const double bound_a = 2 * kUnit * (std::fabs(a * c) + std::fabs(b * s)) * 1.01;
          const double bound_b = 2 * kUnit * (std::fabs(b * c) + std::fabs(a * s)) * 1.01;
          ASSERT_NEAR(static_cast<double>(head[first]), a * c - b * s, bound_a) << i;
          ASSERT_NEAR(static_cast<double>(head[second]), b * c + a * s, bound_b) << i;
        }
        EXPECT_EQ(head.back(), before.back()) << "written beyond the head";
      }
    }
  });
}

TEST(Rotate, PairingsAgreeOnTheSamePairs) {
  constexpr size_t kPairs = 21;
  const std::vector<float> values = RandomFloats(2 * kPairs, 3);
  const std::vector<float> cosine = RandomFloats(kPairs, 4);
  const std::vector<float> sine = RandomFloats(kPairs, 5);
  std::vector<float> halves(2 * kPairs);
  for (size_t i = 0; i < kPairs; ++i) {
    halves[i] = values[2 * i];
    halves[i + kPairs] = values[2 * i + 1];
  }
  std::vector<float> interleaved = values;
  Rotate(interleaved.data(), 2 * kPairs, true, cosine.data(), sine.data());
  Rotate(halves.data(), 2 * kPairs, false, cosine.data(), sine.data());
  for (size_t i = 0; i < kPairs; ++i) {
    EXPECT_EQ(halves[i], interleaved[2 * i]);
    EXPECT_EQ(halves[i + kPairs], interleaved[2 * i + 1]);
  }
}

// A difference that every element of a head may have from the exact result: from the sums (count
// steps in 16 lanes and their tree), the mean, the root and the last products.
double NormTolerance(const std::vector<float>& source, bool center, double mean, double deviation,
                     double value, double root, double weight) {
  const double count = static_cast<double>(source.size());
  double absolute = 0.0;
  for (const float x : source) absolute += std::fabs(static_cast<double>(x)) / count;
  const double sum_steps = count / 16 + 6;
  const double mean_error = center ? (sum_steps + 1) * kUnit * absolute : 0.0;
  const double deviation_error = mean_error + kUnit * std::fabs(deviation);
  // The variance: errors of squared deviations (the mean's cancels but for its square), sums,
  // division, epsilon; half of that for the root, then two roundings.
  const double variance_relative =
      (sum_steps + 4) * kUnit + 2 * mean_error * absolute * root * root +
      2 * mean_error * std::fabs(mean) * root * root + mean_error * mean_error * root * root;
  const double scale_relative = variance_relative / 2 + 3 * kUnit;
  return 1.01 * (deviation_error * root * std::fabs(weight) +
                 std::fabs(deviation * root * weight) * (scale_relative + 2 * kUnit) +
                 kUnit * std::fabs(value));
}

void ExpectNormalized(int64_t size, bool center, bool scaled, bool biased) {
  const size_t count = static_cast<size_t>(size);
  std::vector<float> source = RandomFloats(count, static_cast<uint32_t>(size));
  for (float& value : source) value += 1.5f;
  const std::vector<float> weight = RandomFloats(count, 8);
  const std::vector<float> bias = RandomFloats(count, 9);
  const float epsilon = 1e-5f;
  std::vector<float> target(count + 1, 99.0f);
  Normalize(source.data(), size, center, epsilon, scaled ? weight.data() : nullptr,
            biased ? bias.data() : nullptr, target.data());
  EXPECT_EQ(target.back(), 99.0f);

  double mean = 0.0;
  for (const float x : source) mean += static_cast<double>(x) / static_cast<double>(size);
  if (!center) mean = 0.0;
  double variance = 0.0;
  for (const float x : source) {
    const double deviation = static_cast<double>(x) - mean;
    variance += deviation * deviation / static_cast<double>(size);
  }
  const double root = 1.0 / std::sqrt(variance + static_cast<double>(epsilon));
  for (size_t i = 0; i < count; ++i) {
    const double w = scaled ? static_cast<double>(weight[i]) : 1.0;
    const double b = biased ? static_cast<double>(bias[i]) : 0.0;
    const double deviation = static_cast<double>(source[i]) - mean;
    const double expected = deviation * root * w + b;
    ASSERT_NEAR(static_cast<double>(target[i]), expected,
                NormTolerance(source, center, mean, deviation, expected, root, w))
        << i << " of " << size;
  }
  Normalize(source.data(), size, center, epsilon, scaled ? weight.data() : nullptr,
            biased ? bias.data() : nullptr, source.data());
  target.pop_back();
  EXPECT_EQ(source, target) << "in place";
}

TEST(Normalize, MatchesItsTwin) {
  ForEachTarget([] {
    for (const int64_t size : kSizes) {
      for (int options = 0; options < 8; ++options) {
        ExpectNormalized(size, (options & 1) != 0, (options & 2) != 0, (options & 4) != 0);
      }
    }
  });
}

TEST(Normalize, TargetsOfOneFamilyAgree) {
  const std::vector<float> source = RandomFloats(133, 6);
  std::map<std::string, std::vector<float>> of_family;
  ForEachTarget([&] {
    std::vector<float> target(source.size());
    Normalize(source.data(), 133, true, 1e-6f, source.data(), source.data(), target.data());
    const auto [first, inserted] = of_family.emplace(KernelFamily(), target);
    if (!inserted) {
      EXPECT_EQ(target, first->second);
    }
  });
}

}  // namespace
}  // namespace attnserve::simd
