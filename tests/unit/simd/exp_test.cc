// The approximations of e^x and tanh, measured densely.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/simd/attention.h"
#include "lib/simd/vector_ops.h"
#include "tests/unit/simd/targets_test_util.h"

namespace attnserve::simd {
namespace {

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Distance in units of the last place of the float nearest to `exact`.
double UlpError(float actual, double exact) {
  const float nearest = std::fabs(static_cast<float>(exact));
  const float next = std::nextafter(nearest, std::numeric_limits<float>::infinity());
  const double ulp = static_cast<double>(next) - static_cast<double>(nearest);
  return std::fabs(static_cast<double>(actual) - exact) / ulp;
}

// Negative floats from -0 to `lowest`, one in 499, and the neighbours of each multiple of ln 2 / 2.
std::vector<float> NegativeFloats(float lowest) {
  std::vector<float> values;
  for (uint32_t bits = 0x80000000u; FromBits(bits) >= lowest; bits += 499) {
    values.push_back(FromBits(bits));
  }
  for (int i = 1; i <= 251; ++i) {
    float value = static_cast<float>(-0.34657359027997264 * i);
    for (int j = 0; j < 20; ++j) value = std::nextafter(value, 0.0f);
    for (int j = 0; j < 40; ++j) {
      if (value >= lowest) values.push_back(value);
      value = std::nextafter(value, -100.0f);
    }
  }
  return values;
}

TEST(Exp, IsWithinTwoUlp) {
  const std::vector<float> x = NegativeFloats(-87.3f);
  ForEachTarget([&] {
    std::vector<float> y(x.size());
    Exp(x.data(), static_cast<int64_t>(x.size()), y.data());
    double worst = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, UlpError(y[i], std::exp(static_cast<double>(x[i]))));
    }
    EXPECT_LE(worst, 2.0);
    RecordProperty(std::string("worst_ulp_") + InstructionSet(), std::to_string(worst));
  });
}

TEST(Exp, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float below = std::nextafter(-87.3f, -100.0f);
  ForEachTarget([&] {
    const float x[] = {0.0f, -0.0f, -infinity, -1e30f, -100.0f, below, -87.3f, nan, -nan};
    float y[9];
    Exp(x, 9, y);
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    for (int i = 2; i < 6; ++i) EXPECT_EQ(y[i], 0.0f) << x[i];
    EXPECT_GE(y[6], std::numeric_limits<float>::min());
    EXPECT_TRUE(std::isnan(y[7]));
    EXPECT_TRUE(std::isnan(y[8]));
  });
}

TEST(Exp, TailsHaveTheBitsOfWholeVectors) {
  std::vector<float> x(67);
  for (size_t i = 0; i < x.size(); ++i) x[i] = -0.37f * static_cast<float>(i);
  ForEachTarget([&] {
    std::vector<float> whole(x.size());
    Exp(x.data(), 67, whole.data());
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t count = 1; count <= x.size() - i; count += 5) {
        std::vector<float> part(count + 1, 99.0f);
        Exp(&x[i], static_cast<int64_t>(count), part.data());
        ASSERT_TRUE(std::equal(part.begin(), part.end() - 1, whole.begin() + static_cast<int>(i)));
        ASSERT_EQ(part.back(), 99.0f);
      }
    }
  });
}

TEST(Exp, TargetsOfOneFamilyAgree) {
  const std::vector<float> x = NegativeFloats(-100.0f);
  std::map<std::string, std::vector<float>> of_family;
  ForEachTarget([&] {
    std::vector<float> y(x.size());
    Exp(x.data(), static_cast<int64_t>(x.size()), y.data());
    const auto [first, inserted] = of_family.emplace(KernelFamily(), y);
    if (!inserted) {
      EXPECT_EQ(y, first->second);
    }
  });
}

// cap * tanh(score / cap): the quotient and the product round once each, tanh itself is within 4
// ulp.
TEST(VectorOps, SoftcapIsAccurate) {
  std::vector<float> scores = NegativeFloats(-1000.0f);
  for (size_t i = 0; i < scores.size(); i += 2) scores[i] = -scores[i];
  ForEachTarget([&] {
    for (const float cap : {1.0f, 30.0f, 50.0f}) {
      std::vector<float> capped = scores;
      SoftcapScores(cap, static_cast<int64_t>(capped.size()), capped.data());
      for (size_t i = 0; i < scores.size(); ++i) {
        const double quotient = static_cast<double>(scores[i]) / static_cast<double>(cap);
        const double exact = static_cast<double>(cap) * std::tanh(quotient);
        // 4 ulp are at most 2^-21 of the value; subnormal numbers have a coarser unit.
        const double bound = (0x1p-21 + 2 * 0x1p-24) * std::fabs(exact) + 4 * 0x1p-149 * 50;
        ASSERT_NEAR(static_cast<double>(capped[i]), exact, bound) << scores[i] << " cap " << cap;
      }
    }
  });
}

TEST(VectorOps, SoftcapOfSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  ForEachTarget([&] {
    float scores[] = {infinity, -infinity, NAN, 0.0f, -0.0f};
    SoftcapScores(30.0f, 5, scores);
    EXPECT_EQ(scores[0], 30.0f);
    EXPECT_EQ(scores[1], -30.0f);
    EXPECT_TRUE(std::isnan(scores[2]));
    EXPECT_EQ(scores[3], 0.0f);
    EXPECT_TRUE(std::signbit(scores[4]));
  });
}

}  // namespace
}  // namespace attnserve::simd
