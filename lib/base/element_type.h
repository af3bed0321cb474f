// Element types of tensors and caches, and conversions between them.
#ifndef ATTNSERVE_LIB_BASE_ELEMENT_TYPE_H_
#define ATTNSERVE_LIB_BASE_ELEMENT_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace attnserve {

// Type of one element as it lies in memory (little-endian).
enum class DType : uint8_t {
  kF32,   // IEEE 754 binary32
  kF16,   // IEEE 754 binary16
  kBF16,  // upper half of a binary32
  kBool,  // one byte: 0 or 1
  kI64,   // signed 64-bit integer
  kI8,    // signed byte; in caches only, with a scale for each token and head (kv_layout.h)
};

// Bytes of one element.
constexpr size_t ElementSize(DType type) {
  switch (type) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kBool:
    case DType::kI8:
      return 1;
    case DType::kI64:
      return 8;
  }
  return 0;
}

constexpr bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

// Whether keys and values can be cached as it.
constexpr bool IsCacheType(DType type) { return IsFloat(type) || type == DType::kI8; }

// "F32", "F16", "BF16", "BOOL", "I64", "I8".
std::string_view DTypeName(DType type);

// One element, to nearest with ties to even; overflow gives infinity, NaN stays a (quiet) NaN.
// Integer arithmetic throughout: the same bits whatever the compiler and the instruction set.
uint16_t F32ToBf16(float value);
uint16_t F32ToF16(float value);

inline float Bf16ToF32(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
float F16ToF32(uint16_t bits);

// Lowest finite value of a float type. A mask element at or below it masks.
float LowestFinite(DType type);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_BASE_ELEMENT_TYPE_H_
