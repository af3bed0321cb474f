#include "lib/base/element_type.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace attnserve {
namespace {

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// A binary floating-point format: `mantissa_bits` after the point, exponents from `least_exponent`.
struct Format {
  int mantissa_bits;
  int least_exponent;
  double largest;
};
constexpr Format kF16{10, -14, 65504.0};
constexpr Format kBf16{7, -126, 0x1.fep127};

// `value` rounded to the format, to nearest with ties to even, in double arithmetic (exact here).
double RoundTo(const Format& format, float value) {
  if (value == 0.0f || !std::isfinite(value)) return static_cast<double>(value);
  const int exponent = std::max(std::ilogb(value), format.least_exponent);
  const double unit = std::ldexp(1.0, exponent - format.mantissa_bits);
  const double rounded = std::nearbyint(static_cast<double>(value) / unit) * unit;
  if (std::fabs(rounded) <= format.largest) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), rounded);
}

// What the bits of a half mean, by the definition of IEEE 754.
double F16Meaning(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) {
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

void ExpectRoundsCorrectly(float value) {
  const float half = F16ToF32(F32ToF16(value));
  const float brain = Bf16ToF32(F32ToBf16(value));
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(half));
    EXPECT_TRUE(std::isnan(brain));
    return;
  }
  ASSERT_EQ(static_cast<double>(half), RoundTo(kF16, value)) << std::hexfloat << value;
  ASSERT_EQ(static_cast<double>(brain), RoundTo(kBf16, value)) << std::hexfloat << value;
  ASSERT_EQ(std::signbit(half), std::signbit(value));
  ASSERT_EQ(std::signbit(brain), std::signbit(value));
}

TEST(ElementType, EveryHalfMeansWhatTheStandardSaysAndComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t bits = static_cast<uint16_t>(i);
    const float value = F16ToF32(bits);
    const double meaning = F16Meaning(bits);
    if (std::isnan(meaning)) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_EQ(F32ToF16(value), bits | 0x0200) << "a NaN becomes quiet and keeps the rest";
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), meaning) << i;
    ASSERT_EQ(F32ToF16(value), bits);
  }
}

TEST(ElementType, EveryBrainFloatIsTheUpperHalfAndComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t bits = static_cast<uint16_t>(i);
    const float value = Bf16ToF32(bits);
    const bool is_nan = (bits & 0x7f80) == 0x7f80 && (bits & 0x7f) != 0;
    ASSERT_EQ(std::isnan(value), is_nan);
    ASSERT_EQ(F32ToBf16(value), is_nan ? bits | 0x0040 : bits);
    if (!is_nan) {
      ASSERT_EQ(value, FromBits(i << 16));
    }
  }
}

TEST(ElementType, RandomFloatsRoundToNearestEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) {
    ExpectRoundsCorrectly(FromBits(static_cast<uint32_t>(random())));
  }
  std::uniform_int_distribution<uint32_t> near_half(0x32000000u, 0x48000000u);
  for (int i = 0; i < 300000; ++i) ExpectRoundsCorrectly(FromBits(near_half(random)));
}

TEST(ElementType, TiesAndTheirNeighboursRoundToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = F16Meaning(static_cast<uint16_t>(bits));
    const double high = bits == 0x7bff ? 65536.0 : F16Meaning(static_cast<uint16_t>(bits + 1));
    const float tie = static_cast<float>((low + high) / 2);
    for (const float v : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e6f)}) {
      ExpectRoundsCorrectly(v);
      ExpectRoundsCorrectly(-v);
    }
  }
  for (uint32_t upper = 0; upper < 0x7f80; ++upper) {
    for (const uint32_t lower : {0x7fffu, 0x8000u, 0x8001u}) {
      ExpectRoundsCorrectly(FromBits(upper << 16 | lower));
      ExpectRoundsCorrectly(FromBits(0x80000000u | upper << 16 | lower));
    }
  }
}

TEST(ElementType, SignallingNanBecomesQuietNotInfinite) {
  for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu}) {
    ExpectRoundsCorrectly(FromBits(bits));
  }
}

TEST(ElementType, LowestFiniteIsTheLargestMagnitude) {
  EXPECT_EQ(LowestFinite(DType::kF16), static_cast<float>(-kF16.largest));
  EXPECT_EQ(LowestFinite(DType::kBF16), static_cast<float>(-kBf16.largest));
  EXPECT_EQ(LowestFinite(DType::kF32), -std::numeric_limits<float>::max());
}

TEST(ElementType, SizesAndNames) {
  EXPECT_EQ(ElementSize(DType::kF32), 4u);
  EXPECT_EQ(ElementSize(DType::kF16), 2u);
  EXPECT_EQ(ElementSize(DType::kBF16), 2u);
  EXPECT_EQ(ElementSize(DType::kBool), 1u);
  EXPECT_EQ(ElementSize(DType::kI64), 8u);
  EXPECT_EQ(DTypeName(DType::kBF16), "BF16");
  EXPECT_EQ(DTypeName(DType::kBool), "BOOL");
  EXPECT_TRUE(IsFloat(DType::kF16));
  EXPECT_FALSE(IsFloat(DType::kI64));
}

}  // namespace
}  // namespace attnserve
