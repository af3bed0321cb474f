#include "attnserve/client/tensor.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/base/config.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#ifndef ABSL_IS_LITTLE_ENDIAN
#error "Tensors are little-endian and are copied as they lie in memory."
#endif

namespace attnserve::client {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 62;

void SetHeader(v1::DType dtype, Shape shape, v1::Tensor* tensor) {
  tensor->Clear();
  tensor->set_dtype(dtype);
  tensor->mutable_shape()->Add(shape.begin(), shape.end());
}

template <typename Element>
v1::Tensor CopyTensor(v1::DType dtype, absl::Span<const Element> values, Shape shape) {
  v1::Tensor tensor;
  SetHeader(dtype, shape, &tensor);
  if (!values.empty()) tensor.set_data(values.data(), values.size() * sizeof(Element));
  return tensor;
}

template <uint16_t (*Round)(float)>
v1::Tensor RoundedTensor(v1::DType dtype, absl::Span<const float> values, Shape shape) {
  v1::Tensor tensor;
  SetHeader(dtype, shape, &tensor);
  std::string* data = tensor.mutable_data();
  data->resize(values.size() * sizeof(uint16_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = Round(values[i]);
    std::memcpy(data->data() + i * sizeof bits, &bits, sizeof bits);
  }
  return tensor;
}

template <typename Element, typename Convert>
std::vector<float> ReadAs(const std::string& data, Convert convert) {
  std::vector<float> values(data.size() / sizeof(Element));
  for (size_t i = 0; i < values.size(); ++i) {
    Element element;
    std::memcpy(&element, data.data() + i * sizeof element, sizeof element);
    values[i] = convert(element);
  }
  return values;
}

absl::Status CheckSize(const v1::Tensor& tensor) {
  const absl::StatusOr<int64_t> count = ElementCount(tensor);
  if (!count.ok()) return count.status();
  const auto elements = static_cast<size_t>(*count);
  if (tensor.values_size() > 0) {
    if (tensor.data().empty() && static_cast<size_t>(tensor.values_size()) == elements) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("the shape has ", elements, " elements, values ",
                                                   tensor.values_size(), ", data ",
                                                   tensor.data().size(), " bytes"));
  }
  const size_t size = ElementSize(tensor.dtype());
  if (size == 0) return absl::InvalidArgumentError("the tensor has no element type");
  if (tensor.data().size() % size != 0 || tensor.data().size() / size != elements) {
    return absl::InvalidArgumentError(absl::StrCat("the shape has ", elements, " elements of ",
                                                   size, " bytes, data ", tensor.data().size(),
                                                   " bytes"));
  }
  return absl::OkStatus();
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// `value` without its lowest `shift` bits, rounded to nearest, ties to even.
uint32_t ShiftRounded(uint32_t value, uint32_t shift) {
  const uint32_t kept = value >> shift;
  const uint32_t rest = value & ((uint32_t{1} << shift) - 1);
  const uint32_t half = uint32_t{1} << (shift - 1);
  return kept + ((rest > half || (rest == half && (kept & 1) != 0)) ? 1 : 0);
}

}  // namespace

size_t ElementSize(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return 4;
    case v1::DTYPE_F16:
    case v1::DTYPE_BF16:
      return 2;
    case v1::DTYPE_BOOL:
      return 1;
    case v1::DTYPE_I64:
      return 8;
    default:
      return 0;
  }
}

std::string DTypeName(v1::DType dtype) {
  constexpr size_t kPrefixLength = sizeof("DTYPE_") - 1;
  if (ElementSize(dtype) == 0) return "?";
  return std::string(v1::DType_Name(dtype)).substr(kPrefixLength);
}

absl::StatusOr<int64_t> ElementCount(const v1::Tensor& tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape()) {
    if (size < 0) return absl::InvalidArgumentError("a size of the shape is negative");
    if (size > 0 && count > kMaxElements / size) {
      return absl::InvalidArgumentError("the shape has too many elements");
    }
    count *= size;
  }
  return count;
}

v1::Tensor F32Tensor(absl::Span<const float> values, Shape shape) {
  return CopyTensor(v1::DTYPE_F32, values, shape);
}

v1::Tensor F16Tensor(absl::Span<const float> values, Shape shape) {
  return RoundedTensor<FloatToHalf>(v1::DTYPE_F16, values, shape);
}

v1::Tensor Bf16Tensor(absl::Span<const float> values, Shape shape) {
  return RoundedTensor<FloatToBfloat16>(v1::DTYPE_BF16, values, shape);
}

v1::Tensor I64Tensor(absl::Span<const int64_t> values, Shape shape) {
  return CopyTensor(v1::DTYPE_I64, values, shape);
}

v1::Tensor BoolTensor(absl::Span<const uint8_t> values, Shape shape) {
  v1::Tensor tensor;
  SetHeader(v1::DTYPE_BOOL, shape, &tensor);
  for (const uint8_t value : values) tensor.mutable_data()->push_back(value != 0 ? 1 : 0);
  return tensor;
}

absl::Span<float> MakeF32(Shape shape, v1::Tensor* tensor) {
  SetHeader(v1::DTYPE_F32, shape, tensor);
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  tensor->mutable_data()->resize(count * sizeof(float));
  return absl::MakeSpan(reinterpret_cast<float*>(tensor->mutable_data()->data()), count);
}

absl::StatusOr<absl::Span<const float>> F32Values(const v1::Tensor& tensor) {
  if (tensor.dtype() != v1::DTYPE_F32) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected an F32 tensor, got ", DTypeName(tensor.dtype())));
  }
  if (absl::Status status = CheckSize(tensor); !status.ok()) return status;
  if (tensor.values_size() > 0) {
    return absl::MakeConstSpan(tensor.values().data(), static_cast<size_t>(tensor.values_size()));
  }
  return absl::MakeConstSpan(reinterpret_cast<const float*>(tensor.data().data()),
                             tensor.data().size() / sizeof(float));
}

absl::StatusOr<std::vector<float>> ToFloats(const v1::Tensor& tensor) {
  if (absl::Status status = CheckSize(tensor); !status.ok()) return status;
  if (tensor.values_size() > 0) {
    return std::vector<float>(tensor.values().begin(), tensor.values().end());
  }
  switch (tensor.dtype()) {
    case v1::DTYPE_F16:
      return ReadAs<uint16_t>(tensor.data(), HalfToFloat);
    case v1::DTYPE_BF16:
      return ReadAs<uint16_t>(tensor.data(), Bfloat16ToFloat);
    case v1::DTYPE_BOOL:
      return ReadAs<uint8_t>(tensor.data(), [](uint8_t v) { return v != 0 ? 1.0f : 0.0f; });
    case v1::DTYPE_I64:
      return ReadAs<int64_t>(tensor.data(), [](int64_t v) { return static_cast<float>(v); });
    default:
      return ReadAs<float>(tensor.data(), [](float v) { return v; });
  }
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = BitsOf(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  constexpr uint32_t kInfinity = 0x7f800000u;
  constexpr uint32_t kOverflow = 0x47800000u;   // 65536: beyond every finite half
  constexpr uint32_t kNormal = 0x38800000u;     // 2^-14: the least normal half
  constexpr uint32_t kUnderflow = 0x33000000u;  // 2^-25: half of the least subnormal half
  if (magnitude > kInfinity) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= kOverflow) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude >= kNormal) {
    return static_cast<uint16_t>(sign | ShiftRounded(magnitude - (uint32_t{112} << 23), 13));
  }
  if (magnitude <= kUnderflow) return sign;
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  return static_cast<uint16_t>(sign | ShiftRounded(mantissa, 126 - (magnitude >> 23)));
}

uint16_t FloatToBfloat16(float value) {
  const uint32_t bits = BitsOf(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>(ShiftRounded(bits, 16));
}

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return FloatOf(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return FloatOf(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return sign != 0 ? -magnitude : magnitude;
}

float Bfloat16ToFloat(uint16_t bits) { return FloatOf(static_cast<uint32_t>(bits) << 16); }

}  // namespace attnserve::client
