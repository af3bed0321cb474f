// Tensors of the interface from and to the caller's memory. Row-major, little-endian.
#ifndef ATTNSERVE_CLIENT_TENSOR_H_
#define ATTNSERVE_CLIENT_TENSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attnserve/v1/tensor.pb.h"

namespace attnserve::client {

using Shape = absl::Span<const int64_t>;

// Bytes of one element; 0 for DTYPE_UNSPECIFIED and unknown numbers.
size_t ElementSize(v1::DType dtype);

// "F32", "F16", "BF16", "BOOL", "I64", or "?".
std::string DTypeName(v1::DType dtype);

// Product of the sizes. InvalidArgument if one is negative or the product leaves 2^62.
absl::StatusOr<int64_t> ElementCount(const v1::Tensor& tensor);

// An F32 tensor. The values are copied once, into the message. REQUIRES: values.size() is the
// product of `shape`.
v1::Tensor F32Tensor(absl::Span<const float> values, Shape shape);

// The same, rounded to F16 or BF16 (to nearest, ties to even; overflow gives infinity).
v1::Tensor F16Tensor(absl::Span<const float> values, Shape shape);
v1::Tensor Bf16Tensor(absl::Span<const float> values, Shape shape);

v1::Tensor I64Tensor(absl::Span<const int64_t> values, Shape shape);

// 0 is false, everything else true.
v1::Tensor BoolTensor(absl::Span<const uint8_t> values, Shape shape);

// Makes `tensor` an F32 tensor of zeros and returns its elements, to be written in place (no copy
// at all). The span lives until the message changes or goes.
absl::Span<float> MakeF32(Shape shape, v1::Tensor* tensor);

// The elements of an F32 tensor in place (either form). Errors: InvalidArgument if it has another
// type or its size is not that of its shape. The span lives as long as the message.
absl::StatusOr<absl::Span<const float>> F32Values(const v1::Tensor& tensor);

// The elements of any tensor as F32 (I64 and BOOL converted). Errors as F32Values, less the type.
absl::StatusOr<std::vector<float>> ToFloats(const v1::Tensor& tensor);

// One element. To nearest, ties to even; overflow gives infinity, a NaN stays a NaN.
uint16_t FloatToHalf(float value);
uint16_t FloatToBfloat16(float value);
float HalfToFloat(uint16_t bits);
float Bfloat16ToFloat(uint16_t bits);

}  // namespace attnserve::client

#endif  // ATTNSERVE_CLIENT_TENSOR_H_
