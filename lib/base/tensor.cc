#include "lib/base/tensor.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnserve {
namespace {

const uint8_t* Element(DType type, const void* data, int64_t index) {
  return static_cast<const uint8_t*>(data) + static_cast<size_t>(index) * ElementSize(type);
}

uint16_t LoadHalf(const uint8_t* source) {
  uint16_t bits;
  std::memcpy(&bits, source, sizeof bits);
  return bits;
}

}  // namespace

std::string ShapeToString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> shape) {
  if (shape.size() > static_cast<size_t>(kMaxRank)) {
    return absl::OutOfRangeError(
        absl::StrCat("has ", shape.size(), " dimensions, at most ", kMaxRank, " are allowed"));
  }
  constexpr int64_t kLimit = int64_t{1} << 62;
  int64_t product = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) {
      return absl::OutOfRangeError(
          absl::StrCat("shape ", ShapeToString(shape), " has a negative size"));
    }
    if (size == 0) {
      empty = true;
    } else if (product > kLimit / size) {
      return absl::OutOfRangeError(
          absl::StrCat("shape ", ShapeToString(shape), " has more than 2^62 elements"));
    } else {
      product *= size;
    }
  }
  return empty ? 0 : product;
}

int64_t TensorView::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

float TensorView::At(int64_t index) const {
  float value;
  LoadAsF32(dtype, Element(dtype, data, index), 1, &value);
  return value;
}

void LoadAsF32(DType type, const void* source, int64_t count, float* target) {
  if (count == 0) return;
  if (type == DType::kF32) {
    std::memcpy(target, source, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = LoadHalf(Element(type, source, i));
    target[i] = type == DType::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
  }
}

void StoreFromF32(const float* source, int64_t count, DType type, void* target) {
  if (count == 0) return;
  if (type == DType::kF32) {
    std::memcpy(target, source, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  uint8_t* out = static_cast<uint8_t*>(target);
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = type == DType::kF16 ? F32ToF16(source[i]) : F32ToBf16(source[i]);
    std::memcpy(out + i * 2, &bits, sizeof bits);
  }
}

}  // namespace attnserve
