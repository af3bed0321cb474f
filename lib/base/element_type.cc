#include "lib/base/element_type.h"

#include <limits>

namespace attnserve {
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

}  // namespace

std::string_view DTypeName(DType type) {
  switch (type) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kBool:
      return "BOOL";
    case DType::kI64:
      return "I64";
    case DType::kI8:
      return "I8";
  }
  return "?";
}

uint16_t F32ToBf16(float value) {
  const uint32_t bits = Bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  const uint32_t round = 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>((bits + round) >> 16);
}

uint16_t F32ToF16(float value) {
  const uint32_t bits = Bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: keep the upper payload bits, set the quiet bit
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65536, inf
  if (magnitude >= 0x38800000u) {                                              // normal in F16
    const uint32_t round = 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + round) >> 13));
  }
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);  // below half of the least
  // Subnormal: the 24-bit significand shifted so that one unit is 2^-24.
  const uint32_t shift = 126u - (magnitude >> 23);
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t floor = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  const uint32_t up = rest > half || (rest == half && (floor & 1u)) ? 1u : 0u;
  return static_cast<uint16_t>(sign | (floor + up));
}

float F16ToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1fu) {  // a signalling NaN becomes quiet, as the hardware conversion does
    const uint32_t quiet = fraction != 0 ? 0x400000u : 0u;
    return FromBits(sign | 0x7f800000u | quiet | (fraction << 13));
  }
  if (exponent != 0) return FromBits(sign | ((exponent + 112u) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return FromBits(sign | Bits(magnitude));
}

float LowestFinite(DType type) {
  switch (type) {
    case DType::kF16:
      return -65504.0f;
    case DType::kBF16:
      return FromBits(0xff7f0000u);
    default:
      return std::numeric_limits<float>::lowest();
  }
}

}  // namespace attnserve
