// Conversion on every target against the one-element functions of lib/base.
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
