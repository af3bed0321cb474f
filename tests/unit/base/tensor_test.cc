#include "lib/base/tensor.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace attnserve {
namespace {

constexpr int64_t kHuge = int64_t{1} << 40;

TEST(ShapeToString, ListsSizes) {
  EXPECT_EQ(ShapeToString({}), "[]");
  EXPECT_EQ(ShapeToString({2, 3, 4}), "[2, 3, 4]");
}

TEST(ElementCount, MultipliesSizes) {
  EXPECT_EQ(*ElementCount({}), 1);
  EXPECT_EQ(*ElementCount({5}), 5);
  EXPECT_EQ(*ElementCount({2, 3, 4}), 24);
  EXPECT_EQ(*ElementCount({2, 0, 4}), 0);
  EXPECT_EQ(*ElementCount({int64_t{1} << 31, int64_t{1} << 31}), int64_t{1} << 62);
}

TEST(ElementCount, RefusesNegativeSizesManyDimensionsAndOverflow) {
  EXPECT_EQ(ElementCount({2, -1}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ElementCount(std::vector<int64_t>(8, 1)).value(), 1);
  EXPECT_EQ(ElementCount(std::vector<int64_t>(9, 1)).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ElementCount({kHuge, kHuge}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(ElementCount, ZeroHidesNoOverflow) {
  EXPECT_EQ(ElementCount({0, kHuge, kHuge}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ElementCount({kHuge, kHuge, 0}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ElementCount({0, -1}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(TensorView, AbsentUntilItHasData) {
  TensorView view;
  EXPECT_FALSE(view.present());
  const float value = 1.0f;
  view.data = &value;
  EXPECT_TRUE(view.present());
  EXPECT_EQ(view.rank(), 0);
  EXPECT_EQ(view.elements(), 1);
  EXPECT_EQ(view.bytes(), 4u);
}

TEST(TensorView, ReadsMisalignedElementsOfEveryFloatType) {
  const std::vector<float> values = {1.5f, -2.0f, 0.25f, 3.0f, -0.5f, 8.0f};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<uint8_t> bytes(1 + values.size() * ElementSize(type));
    StoreFromF32(values.data(), 6, type, bytes.data() + 1);
    const TensorView view{type, {2, 3}, bytes.data() + 1};
    EXPECT_EQ(view.dim(1), 3);
    EXPECT_EQ(view.elements(), 6);
    EXPECT_EQ(view.bytes(), 6 * ElementSize(type));
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(view.At(static_cast<int64_t>(i)), values[i]) << DTypeName(type);
    }
  }
}

TEST(StoreFromF32, RoundsAndLoadsBack) {
  const float third = 1.0f / 3.0f;
  uint16_t half = 0;
  StoreFromF32(&third, 1, DType::kF16, &half);
  EXPECT_EQ(half, F32ToF16(third));
  uint16_t brain = 0;
  StoreFromF32(&third, 1, DType::kBF16, &brain);
  EXPECT_EQ(brain, F32ToBf16(third));
  float back = 0.0f;
  LoadAsF32(DType::kBF16, &brain, 1, &back);
  EXPECT_EQ(back, Bf16ToF32(brain));
}

TEST(StoreFromF32, NothingToCopyNeedsNoMemory) {
  StoreFromF32(nullptr, 0, DType::kF32, nullptr);
  LoadAsF32(DType::kF16, nullptr, 0, nullptr);
}

}  // namespace
}  // namespace attnserve
