#include "attnserve/client/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace attnserve::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// `value` rounded to `digits` significant bits, to nearest with ties to even, with exponents from
// `least` (of the last bit) on; at or above `limit` infinite.
float RoundedTwin(float value, int digits, int least, double limit) {
  if (std::isnan(value) || std::isinf(value) || value == 0.0f) return value;
  int exponent;
  std::frexp(static_cast<double>(value), &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - digits, least));
  const double rounded = std::nearbyint(value / unit) * unit;
  if (std::fabs(rounded) >= limit) return value < 0 ? -kInfinity : kInfinity;
  return static_cast<float>(std::copysign(rounded, value));
}

std::vector<float> InterestingFloats() {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               kInfinity,
                               -kInfinity,
                               65504.0f,
                               65519.99f,
                               65520.0f,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min(),
                               0x1p-24f,
                               0x1p-25f,
                               0x1.000002p-25f,
                               0x1.8p-24f,
                               0x1p-14f,
                               0x1.ffcp-15f,
                               0x1.ffep-15f};
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    float value;
    std::memcpy(&value, &bits, sizeof value);
    values.push_back(value);
    values.push_back(
        std::ldexp(static_cast<float>(random() % 8192 + 1), static_cast<int>(i % 45) - 37));
  }
  return values;
}

TEST(Half, EveryHalfComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value)))) << bits;
    } else {
      ASSERT_EQ(FloatToHalf(value), bits);
    }
  }
}

TEST(Half, FloatsRoundToNearestEven) {
  for (const float value : InterestingFloats()) {
    const float rounded = HalfToFloat(FloatToHalf(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(rounded));
    } else {
      ASSERT_EQ(rounded, RoundedTwin(value, 11, -24, 65536.0)) << value;
      ASSERT_EQ(std::signbit(rounded), std::signbit(value)) << value;
    }
  }
}

TEST(Bfloat16, FloatsRoundToNearestEven) {
  for (const float value : InterestingFloats()) {
    const float rounded = Bfloat16ToFloat(FloatToBfloat16(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(rounded));
    } else {
      ASSERT_EQ(rounded, RoundedTwin(value, 8, -133, 0x1p128)) << value;
    }
  }
}

TEST(Bfloat16, NanWithLowPayloadStaysNan) {
  const uint32_t bits = 0x7f800001u;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  EXPECT_TRUE(std::isnan(Bfloat16ToFloat(FloatToBfloat16(value))));
}

TEST(Tensor, F32KeepsShapeAndBits) {
  const std::vector<float> values = {1.0f, -2.5f, kInfinity, 1e-40f, 0.0f, 3.0f};
  const v1::Tensor tensor = F32Tensor(values, {1, 2, 3});
  EXPECT_EQ(tensor.dtype(), v1::DTYPE_F32);
  EXPECT_THAT(tensor.shape(), ElementsAre(1, 2, 3));
  ASSERT_EQ(tensor.data().size(), 24u);
  EXPECT_EQ(std::memcmp(tensor.data().data(), values.data(), 24), 0);
  EXPECT_THAT(F32Values(tensor).value(), testing::ElementsAreArray(values));
}

TEST(Tensor, F32ValuesAreNotCopied) {
  const v1::Tensor tensor = F32Tensor({1.0f, 2.0f}, {2});
  EXPECT_EQ(static_cast<const void*>(F32Values(tensor)->data()), tensor.data().data());
}

TEST(Tensor, MadeInPlaceStartsAtZero) {
  v1::Tensor tensor;
  absl::Span<float> values = MakeF32({2, 2}, &tensor);
  EXPECT_THAT(values, ElementsAre(0, 0, 0, 0));
  values[3] = 5.0f;
  EXPECT_THAT(ToFloats(tensor).value(), ElementsAre(0, 0, 0, 5));
}

TEST(Tensor, EveryTypeReadsBackAsFloats) {
  EXPECT_THAT(ToFloats(F16Tensor({0.5f, -65504.0f}, {2})).value(), ElementsAre(0.5f, -65504.0f));
  EXPECT_THAT(ToFloats(Bf16Tensor({0.5f, -3.0f}, {2})).value(), ElementsAre(0.5f, -3.0f));
  EXPECT_THAT(ToFloats(I64Tensor({-7, 1 << 20}, {2})).value(), ElementsAre(-7.0f, 1048576.0f));
  EXPECT_THAT(ToFloats(BoolTensor({0, 3}, {2})).value(), ElementsAre(0.0f, 1.0f));
  EXPECT_EQ(BoolTensor({0, 3}, {2}).data(), std::string("\0\1", 2));
}

TEST(Tensor, ValuesFormIsRead) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  tensor.add_shape(2);
  tensor.add_values(1.5f);
  tensor.add_values(2.5f);
  EXPECT_THAT(F32Values(tensor).value(), ElementsAre(1.5f, 2.5f));
  EXPECT_THAT(ToFloats(tensor).value(), ElementsAre(1.5f, 2.5f));
}

TEST(Tensor, EmptyTensorsAreFine) {
  const v1::Tensor tensor = F32Tensor({}, {1, 4, 0, 8});
  EXPECT_TRUE(F32Values(tensor)->empty());
  EXPECT_TRUE(ToFloats(tensor)->empty());
}

TEST(Tensor, SizeThatContradictsTheShapeIsAnError) {
  v1::Tensor tensor = F32Tensor({1.0f, 2.0f}, {2});
  tensor.mutable_data()->push_back('x');
  EXPECT_THAT(std::string(F32Values(tensor).status().message()), HasSubstr("9 bytes"));
  EXPECT_FALSE(ToFloats(tensor).ok());
  tensor = F32Tensor({1.0f, 2.0f}, {2});
  tensor.add_values(1.0f);
  EXPECT_FALSE(ToFloats(tensor).ok()) << "both forms at once";
  tensor = F32Tensor({}, {0});
  tensor.set_shape(0, -1);
  EXPECT_FALSE(ToFloats(tensor).ok());
  tensor.set_shape(0, int64_t{1} << 40);
  tensor.add_shape(int64_t{1} << 40);
  EXPECT_FALSE(ToFloats(tensor).ok());
}

TEST(Tensor, OtherTypesAreNoF32Values) {
  EXPECT_THAT(std::string(F32Values(F16Tensor({1.0f}, {1})).status().message()),
              HasSubstr("got F16"));
  EXPECT_FALSE(F32Values(v1::Tensor()).ok());
  EXPECT_FALSE(ToFloats(v1::Tensor()).ok()) << "no element type";
}

}  // namespace
}  // namespace attnserve::client
