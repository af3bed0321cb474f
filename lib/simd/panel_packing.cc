#include <cstring>

#include "lib/simd/panel_product.h"
#include "lib/simd/row_groups.h"

namespace attnserve::simd {
namespace {

float ReadElement(DType type, const void* elements, int64_t index) {
  const uint8_t* element =
      static_cast<const uint8_t*>(elements) + index * static_cast<int64_t>(ElementSize(type));
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, element, sizeof bits);
  return type == DType::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
}

}  // namespace

void PackRows(const float* x, int64_t row_stride, int64_t rows, int64_t k, float* packed) {
  const RowGroups groups(rows, kRowGroup);
  for (int64_t begin = 0; begin < k;) {
    const int64_t depth = ReductionBlock(k - begin);
    for (int64_t g = 0; g < groups.count(); ++g) {
      const float* source = x + groups.begin(g) * row_stride + begin;
      for (int64_t i = 0; i < depth; ++i) {
        for (int64_t r = 0; r < groups.size(g); ++r) *packed++ = source[r * row_stride + i];
      }
    }
    begin += depth;
  }
}

void PackColumn(DType source_type, const void* weights, int64_t stride, int64_t k, int64_t column,
                DType weight_type, void* panels) {
  const int64_t panel = column / kPanelWidth * k * kPanelWidth;
  const int64_t place = column % kPanelWidth;
  const int64_t half = kPanelWidth / 2;
  const int64_t interleaved = place % half * 2 + place / half;
  for (int64_t i = 0; i < k; ++i) {
    const float value = ReadElement(source_type, weights, i * stride);
    const int64_t row = panel + i * kPanelWidth;
    if (weight_type == DType::kF32) {
      static_cast<float*>(panels)[row + place] = value;
    } else {
      static_cast<uint16_t*>(panels)[row + interleaved] =
          weight_type == DType::kF16 ? F32ToF16(value) : F32ToBf16(value);
    }
  }
}

}  // namespace attnserve::simd
