// Conversion on every target against the one-element functions of lib/base.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/element_type.h"
#include "lib/simd/vector_ops.h"
#include "tests/unit/simd/targets_test_util.h"

namespace attnserve::simd {
namespace {

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

TEST(Widen, EveryHalfHasTheBitsOfTheBase) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  ForEachTarget([&] {
    for (const DType type : {DType::kF16, DType::kBF16}) {
      std::vector<float> wide(halves.size());
      Widen(type, halves.data(), 65536, wide.data());
      for (size_t i = 0; i < halves.size(); ++i) {
        const float expected = type == DType::kF16 ? F16ToF32(halves[i]) : Bf16ToF32(halves[i]);
        ASSERT_EQ(Bits(wide[i]), Bits(expected)) << DTypeName(type) << " " << i;
      }
    }
  });
}

// Every exponent and sign, with mantissas around each rounding boundary; and random bits.
std::vector<float> TrickyFloats() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 0x10000; upper += 1) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(FromBits(upper << 16 | lower));
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) values.push_back(FromBits(static_cast<uint32_t>(random())));
  for (uint32_t half = 0; half < 0x7c00; ++half) {  // ties between neighbours of F16
    const float low = F16ToF32(static_cast<uint16_t>(half));
    const float high = F16ToF32(static_cast<uint16_t>(half + 1));
    const float middle = std::isinf(high) ? 65520.0f : low + (high - low) / 2;
    for (const float v : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      values.push_back(v);
      values.push_back(-v);
    }
  }
  return values;
}

TEST(Narrow, HasTheBitsOfTheBase) {
  const std::vector<float> values = TrickyFloats();
  ForEachTarget([&] {
    for (const DType type : {DType::kF16, DType::kBF16}) {
      std::vector<uint16_t> narrow(values.size());
      Narrow(values.data(), static_cast<int64_t>(values.size()), type, narrow.data());
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t expected = type == DType::kF16 ? F32ToF16(values[i]) : F32ToBf16(values[i]);
        ASSERT_EQ(narrow[i], expected) << DTypeName(type) << " of " << std::hex << Bits(values[i]);
      }
    }
  });
}

TEST(Quantize, RoundsToNearestEvenAndStaysInRange) {
  const std::vector<float> x = {0.0f,  -0.0f,  0.5f,   1.5f,    2.5f,   -0.5f,   -1.5f,
                                2.49f, 126.5f, 127.0f, -127.0f, 127.4f, 1000.0f, -1e30f};
  const std::vector<int8_t> steps = {0, 0, 0, 2, 2, 0, -2, 2, 126, 127, -127, 127, 127, -127};
  ForEachTarget([&] {
    for (const float scale : {1.0f, 0x1p-20f, 0x1p100f}) {
      std::vector<float> scaled;
      for (const float value : x) scaled.push_back(value * scale);
      std::vector<int8_t> bytes(x.size() + 1, 99);
      Quantize(scaled.data(), static_cast<int64_t>(x.size()), scale, bytes.data());
      EXPECT_EQ(bytes.back(), 99);
      bytes.pop_back();
      EXPECT_EQ(bytes, steps) << scale;
    }
  });
}

TEST(Quantize, EveryLengthIsWithinHalfAStepOfTheLargest) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  ForEachTarget([&] {
    for (int64_t count = 0; count <= 67; ++count) {
      std::vector<float> x(static_cast<size_t>(count));
      float largest = 0.0f;
      for (float& value : x) {
        value = normal(random);
        largest = std::max(largest, std::fabs(value));
      }
      ASSERT_EQ(LargestMagnitude(x.data(), count), largest);
      const float scale = largest / 127.0f;
      std::vector<int8_t> bytes(x.size());
      Quantize(x.data(), count, scale, bytes.data());
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(bytes[i], static_cast<int>(std::nearbyint(x[i] / scale)));
        EXPECT_LE(std::fabs(x[i] - static_cast<float>(bytes[i]) * scale), 0.5001f * scale);
      }
    }
  });
}

TEST(Quantize, WhatIsNotFiniteHasNoMagnitudeAndNoSteps) {
  const float kInf = std::numeric_limits<float>::infinity();
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  ForEachTarget([&] {
    for (const float bad : {kInf, -kInf, kNan, -kNan}) {
      for (size_t at = 0; at < 19; ++at) {
        std::vector<float> x(19, 1.0f);
        x[at] = bad;
        EXPECT_TRUE(std::isnan(LargestMagnitude(x.data(), 19))) << bad << " at " << at;
      }
    }
    const float most = std::numeric_limits<float>::max();
    EXPECT_EQ(LargestMagnitude(&most, 1), most);
    const float x[] = {1.0f, kNan, -kInf};
    for (const float scale : {0.0f, kNan, -1.0f}) {
      int8_t bytes[] = {9, 9, 9};
      Quantize(x, 3, scale, bytes);
      for (const int8_t byte : bytes) EXPECT_EQ(byte, 0);
    }
  });
}

TEST(Conversion, EveryLengthAtOddAddressesTouchesNothingElse) {
  ForEachTarget([] {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      const size_t size = ElementSize(type);
      for (size_t count = 0; count <= 40; ++count) {
        std::vector<float> source(count);
        for (size_t i = 0; i < count; ++i) source[i] = static_cast<float>(i) - 7.5f;
        std::vector<uint8_t> narrow(count * size + 2, 0xee);
        Narrow(source.data(), static_cast<int64_t>(count), type, narrow.data() + 1);
        EXPECT_EQ(narrow.front(), 0xee);
        EXPECT_EQ(narrow.back(), 0xee);
        std::vector<float> wide(count + 1, 99.0f);
        Widen(type, narrow.data() + 1, static_cast<int64_t>(count), wide.data());
        EXPECT_EQ(wide.back(), 99.0f);
        wide.pop_back();
        EXPECT_EQ(wide, source);
      }
    }
  });
}

}  // namespace
}  // namespace attnserve::simd
