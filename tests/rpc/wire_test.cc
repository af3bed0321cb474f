#include "server/wire.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/errors.h"
#include "tests/rpc/test_server.h"

namespace attnserve {
namespace {

using testing::BoolTensor;
using testing::FloatTensor;
using testing::Int64Tensor;

v1::Tensor ValuesTensor(v1::DType dtype, const std::vector<int64_t>& shape,
                        const std::vector<float>& values) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Assign(shape.begin(), shape.end());
  tensor.mutable_values()->Assign(values.begin(), values.end());
  return tensor;
}

// "BAD_SHAPE x", or "OK".
std::string Outcome(const v1::Tensor& tensor, TensorDecoder* decoder) {
  TensorView view;
  const absl::Status status = decoder->Decode("x", tensor, &view);
  if (status.ok()) return "OK";
  const auto detail = GetErrorDetail(status);
  if (!detail.has_value()) return status.ToString();
  return detail->reason + " " + detail->field;
}

std::string Outcome(const v1::Tensor& tensor) {
  TensorDecoder decoder;
  return Outcome(tensor, &decoder);
}

template <class T>
T ElementAt(const TensorView& view, size_t index) {
  T element;
  std::memcpy(&element, static_cast<const char*>(view.data) + index * sizeof(T), sizeof(T));
  return element;
}

TEST(TensorDecoder, DataIsViewedInPlace) {
  const v1::Tensor tensor = FloatTensor({2, 2}, {1, 2, 3, 4});
  TensorDecoder decoder;
  TensorView view;
  ASSERT_TRUE(decoder.Decode("x", tensor, &view).ok());
  EXPECT_EQ(view.data, tensor.data().data());
  EXPECT_EQ(view.shape, (Shape{2, 2}));
  EXPECT_FALSE(decoder.uses_values());
}

TEST(TensorDecoder, F32ValuesAreViewedInPlace) {
  const v1::Tensor tensor = ValuesTensor(v1::DTYPE_F32, {3}, {1, 2, 3});
  TensorDecoder decoder;
  TensorView view;
  ASSERT_TRUE(decoder.Decode("x", tensor, &view).ok());
  EXPECT_EQ(view.data, tensor.values().data());
  EXPECT_TRUE(decoder.uses_values());
}

TEST(TensorDecoder, HalfValuesAreRoundedToNearestEven) {
  // 2049 lies between 2048 and 2050 in F16; 257 between 256 and 258 in BF16: ties to even.
  TensorDecoder f16;
  TensorView view;
  ASSERT_TRUE(f16.Decode("x", ValuesTensor(v1::DTYPE_F16, {2}, {2049, 2051}), &view).ok());
  EXPECT_EQ(view.At(0), 2048);
  EXPECT_EQ(view.At(1), 2052);
  TensorDecoder bf16;
  ASSERT_TRUE(bf16.Decode("x", ValuesTensor(v1::DTYPE_BF16, {2}, {257, 259}), &view).ok());
  EXPECT_EQ(view.At(0), 256);
  EXPECT_EQ(view.At(1), 260);
}

TEST(TensorDecoder, IntegerAndBoolValuesAreConverted) {
  TensorDecoder decoder;
  TensorView integers, bools;
  ASSERT_TRUE(
      decoder.Decode("a", ValuesTensor(v1::DTYPE_I64, {3}, {-5, 0, 1 << 20}), &integers).ok());
  ASSERT_TRUE(decoder.Decode("b", ValuesTensor(v1::DTYPE_BOOL, {2}, {0, 1}), &bools).ok());
  EXPECT_EQ(ElementAt<int64_t>(integers, 0), -5);
  EXPECT_EQ(ElementAt<int64_t>(integers, 2), 1 << 20);
  EXPECT_EQ(ElementAt<uint8_t>(bools, 0), 0);
  EXPECT_EQ(ElementAt<uint8_t>(bools, 1), 1);
  EXPECT_FALSE(decoder.uses_values());  // says nothing about float tensors
}

TEST(TensorDecoder, ValuesThatDoNotFitTheTypeAreRefused) {
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_I8, {1}, {1})), "BAD_DTYPE x.dtype");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_BOOL, {1}, {2})), "BAD_MASK x");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_BOOL, {1}, {0.5f})), "BAD_MASK x");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_BOOL, {1}, {NAN})), "BAD_MASK x");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_I64, {1}, {1.5f})), "BAD_DTYPE x");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_I64, {1}, {NAN})), "BAD_DTYPE x");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_I64, {1}, {INFINITY})), "BAD_DTYPE x");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_I64, {1}, {0x1p63f})), "BAD_DTYPE x");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_I64, {1}, {-0x1p63f})), "OK");
}

TEST(TensorDecoder, UnknownTypesAreRefused) {
  v1::Tensor tensor = FloatTensor({1}, {1});
  tensor.set_dtype(v1::DTYPE_UNSPECIFIED);
  EXPECT_EQ(Outcome(tensor), "BAD_DTYPE x.dtype");
  tensor.set_dtype(static_cast<v1::DType>(7));
  EXPECT_EQ(Outcome(tensor), "BAD_DTYPE x.dtype");
  tensor.set_dtype(static_cast<v1::DType>(77));
  EXPECT_EQ(Outcome(tensor), "BAD_DTYPE x.dtype");
}

TEST(TensorDecoder, AbsurdShapesAreRefused) {
  EXPECT_EQ(Outcome(FloatTensor({-1}, {1})), "BAD_SHAPE x");
  EXPECT_EQ(Outcome(FloatTensor({-1, -1}, {1})), "BAD_SHAPE x");
  EXPECT_EQ(Outcome(FloatTensor({INT64_MIN}, {})), "BAD_SHAPE x");
  EXPECT_EQ(Outcome(FloatTensor(std::vector<int64_t>(9, 1), {1})), "BAD_SHAPE x");
  EXPECT_EQ(Outcome(FloatTensor(std::vector<int64_t>(8, 1), {1})), "OK");
  EXPECT_EQ(Outcome(FloatTensor({int64_t{1} << 40, int64_t{1} << 40}, {1})), "TOO_LARGE x");
  EXPECT_EQ(Outcome(FloatTensor({INT64_MAX, INT64_MAX}, {1})), "TOO_LARGE x");
  EXPECT_EQ(Outcome(FloatTensor({int64_t{1} << 62}, {1})), "TOO_LARGE x");
  // A zero elsewhere does not hide it.
  EXPECT_EQ(Outcome(FloatTensor({0, int64_t{1} << 40, int64_t{1} << 40}, {})), "TOO_LARGE x");
  // Large but not absurd: it is the data that is missing.
  EXPECT_EQ(Outcome(FloatTensor({1 << 16, 1 << 15}, {1})), "SIZE_MISMATCH x");
}

TEST(TensorDecoder, SizeMismatchSaysBothNumbers) {
  TensorDecoder decoder;
  TensorView view;
  const absl::Status status = decoder.Decode("x", FloatTensor({2, 3}, {1, 2, 3, 4, 5}), &view);
  const std::string message(status.message());
  EXPECT_NE(message.find("20"), std::string::npos) << message;
  EXPECT_NE(message.find("24"), std::string::npos) << message;
  EXPECT_NE(message.find("[2, 3]"), std::string::npos) << message;
}

TEST(TensorDecoder, ExactlyOneFormCarriesTheElements) {
  v1::Tensor both = FloatTensor({1}, {1});
  both.add_values(1);
  EXPECT_EQ(Outcome(both), "SIZE_MISMATCH x");
  EXPECT_EQ(Outcome(FloatTensor({2}, {})), "SIZE_MISMATCH x");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_F32, {2}, {1})), "SIZE_MISMATCH x");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_F32, {0}, {1})), "SIZE_MISMATCH x");
  EXPECT_EQ(Outcome(FloatTensor({0}, {1})), "SIZE_MISMATCH x");
  v1::Tensor odd = FloatTensor({1}, {1});
  odd.mutable_data()->push_back('x');
  EXPECT_EQ(Outcome(odd), "SIZE_MISMATCH x");
}

TEST(TensorDecoder, EmptyTensorIsPresent) {
  TensorDecoder decoder;
  TensorView view;
  ASSERT_TRUE(decoder.Decode("x", FloatTensor({1, 0, 4}, {}), &view).ok());
  EXPECT_TRUE(view.present());
  EXPECT_EQ(view.elements(), 0);
  // It fits both forms.
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_F32, {1}, {1}), &decoder), "OK");
  EXPECT_TRUE(decoder.uses_values());
}

TEST(TensorDecoder, ScalarHasOneElement) {
  EXPECT_EQ(Outcome(FloatTensor({}, {1})), "OK");
  EXPECT_EQ(Outcome(FloatTensor({}, {})), "SIZE_MISMATCH x");
}

TEST(TensorDecoder, FloatTensorsShareTypeAndForm) {
  TensorDecoder decoder;
  EXPECT_EQ(Outcome(FloatTensor({1}, {1}), &decoder), "OK");
  v1::Tensor half;
  half.set_dtype(v1::DTYPE_F16);
  half.add_shape(1);
  half.set_data("ab");
  EXPECT_EQ(Outcome(half, &decoder), "BAD_DTYPE x");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_F32, {1}, {1}), &decoder), "BAD_OPTION x");
  EXPECT_EQ(Outcome(BoolTensor({1}, std::string(1, '\1')), &decoder), "OK");
  EXPECT_EQ(Outcome(Int64Tensor({1}, {7}), &decoder), "OK");
  EXPECT_EQ(Outcome(ValuesTensor(v1::DTYPE_BOOL, {1}, {1}), &decoder), "OK");
}

TEST(TensorEncoder, DataIsWrittenInPlace) {
  TensorEncoder encoder;
  v1::Tensor tensor;
  const int64_t shape[] = {2, 1};
  auto* target = static_cast<float*>(encoder.Allocate(DType::kF32, shape, &tensor));
  target[0] = 1.5f;
  target[1] = -2.0f;
  encoder.Finish();
  EXPECT_EQ(tensor.dtype(), v1::DTYPE_F32);
  EXPECT_EQ(tensor.shape_size(), 2);
  EXPECT_EQ(testing::Floats(tensor), (std::vector<float>{1.5f, -2.0f}));
}

TEST(TensorEncoder, HalfValuesAreWidened) {
  TensorEncoder encoder;
  encoder.set_uses_values(true);
  v1::Tensor tensor;
  const int64_t shape[] = {2};
  auto* target = static_cast<uint16_t*>(encoder.Allocate(DType::kF16, shape, &tensor));
  target[0] = F32ToF16(0.25f);
  target[1] = F32ToF16(-3.0f);
  encoder.Finish();
  EXPECT_EQ(tensor.dtype(), v1::DTYPE_F16);
  EXPECT_TRUE(tensor.data().empty());
  ASSERT_EQ(tensor.values_size(), 2);
  EXPECT_EQ(tensor.values(0), 0.25f);
  EXPECT_EQ(tensor.values(1), -3.0f);
}

TEST(Stages, UnknownOnesAreRefusedByIndex) {
  v1::ForwardRequest request;
  request.add_stages(v1::STAGE_LSE);
  request.add_stages(v1::STAGE_UNSPECIFIED);
  absl::InlinedVector<Stage, 2> stages;
  const absl::Status status = DecodeStages("stages", request.stages(), &stages);
  EXPECT_EQ(GetErrorDetail(status)->field, "stages[1]");
  EXPECT_EQ(status.message(),
            "stages[1]: is 0; expected one of STAGE_SCORES, STAGE_SOFTCAPPED, STAGE_MASKED, "
            "STAGE_WEIGHTS, STAGE_LSE, STAGE_CONTEXT");
}

TEST(Stages, NamesMapBothWays) {
  for (int i = v1::STAGE_SCORES; i <= v1::STAGE_CONTEXT; ++i) {
    v1::ForwardRequest request;
    request.add_stages(static_cast<v1::Stage>(i));
    absl::InlinedVector<Stage, 2> stages;
    ASSERT_TRUE(DecodeStages("stages", request.stages(), &stages).ok());
    EXPECT_EQ(StageToProto(stages[0]), i);
  }
}

}  // namespace
}  // namespace attnserve
