// Sixteen lanes in as many vectors as an instruction set needs, and how elements of each type get
// into them. Compiled once per Highway target.
//
// Names: kLanes lanes a vector, kVectors = 16 / kLanes vectors for sixteen lanes.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/base/element_type.h"
#include "lib/simd/targets.h"

#if defined(ATTNSERVE_LIB_SIMD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNSERVE_LIB_SIMD_LANES_INL_H_
#undef ATTNSERVE_LIB_SIMD_LANES_INL_H_
#else
#define ATTNSERVE_LIB_SIMD_LANES_INL_H_
#endif

#include "hwy/cache_control.h"
#include "hwy/highway.h"

// Unrolls a loop over registers, so that the compiler keeps the array it runs over in registers.
// The fallback of one lane has too many for that, and compiling it would take minutes.
#undef ATTNSERVE_UNROLL
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#define ATTNSERVE_UNROLL
#elif defined(__clang__)
#define ATTNSERVE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ATTNSERVE_UNROLL _Pragma("GCC unroll 16")
#endif

// Four turns of an inner loop in one: its exit is then predicted.
#undef ATTNSERVE_UNROLL_4
#if defined(__clang__)
#define ATTNSERVE_UNROLL_4 _Pragma("clang loop unroll_count(4)")
#else
#define ATTNSERVE_UNROLL_4 _Pragma("GCC unroll 4")
#endif

// Whether the target converts F16 in hardware, with the bits of lib/base/element_type.h.
#undef ATTNSERVE_NATIVE_F16
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || (HWY_ARCH_ARM_A64 && HWY_TARGET != HWY_EMU128)
#define ATTNSERVE_NATIVE_F16 1
#else
#define ATTNSERVE_NATIVE_F16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace attnserve {
namespace simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using HalfTag = hn::Rebind<uint16_t, FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Words = hn::Vec<WordTag>;
using FloatMask = hn::Mask<FloatTag>;

constexpr size_t kLanes = hn::MaxLanes(FloatTag());
constexpr size_t kVectors = 16 / kLanes;
static_assert(kLanes * kVectors == 16, "the lanes of a vector divide 16");

// Elements of 16 bits as they lie in memory, of any alignment.
struct F16 {
  uint8_t bytes[2];
};
struct BF16 {
  uint8_t bytes[2];
};
struct I8 {
  int8_t value;
};

// F16 bits in the low half of each word, to F32. Multiplying by 2^112 moves the exponent, subnormal
// numbers included; infinities and NaN (made quiet), which then lie from 2^-96 up, get theirs set.
HWY_INLINE Floats F16BitsToF32(Words half) {
  const FloatTag d;
  const WordTag dw;
  const Words magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(dw, 0x7fffu)));
  const Words sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(dw, 0x8000u)));
  const Words infinity = hn::Or(magnitude, hn::Set(dw, 0x7f800000u));
  const Words nan = hn::Or(magnitude, hn::Set(dw, 0x7fc00000u));
  const Floats scaled = hn::BitCast(d, magnitude);
  const Floats special = hn::IfThenElse(hn::Gt(scaled, hn::Set(d, 0x1p-96f)), hn::BitCast(d, nan),
                                        hn::BitCast(d, infinity));
  const Floats finite = hn::Mul(scaled, hn::Set(d, 0x1p112f));
  const Floats value = hn::IfThenElse(hn::Ge(scaled, hn::Set(d, 0x1p-96f)), special, finite);
  return hn::Or(value, hn::BitCast(d, sign));
}

// F16 elements, one in each 16-bit lane.
HWY_INLINE Floats WidenF16(hn::Vec<HalfTag> half) {
#if ATTNSERVE_NATIVE_F16
  return hn::PromoteTo(FloatTag(), hn::BitCast(hn::Rebind<hwy::float16_t, FloatTag>(), half));
#else
  return F16BitsToF32(hn::PromoteTo(WordTag(), half));
#endif
}

// kLanes consecutive elements, of any alignment.
HWY_INLINE Floats LoadLanes(const float* source) { return hn::LoadU(FloatTag(), source); }

HWY_INLINE Floats LoadLanes(const F16* source) {
  return WidenF16(hn::LoadU(HalfTag(), reinterpret_cast<const uint16_t*>(source)));
}

HWY_INLINE Floats LoadLanes(const BF16* source) {
  const auto half = hn::LoadU(HalfTag(), reinterpret_cast<const uint16_t*>(source));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), half)));
}

HWY_INLINE Floats LoadLanes(const I8* source) {
  const hn::Rebind<int8_t, FloatTag> d8;
  const auto bytes = hn::LoadU(d8, reinterpret_cast<const int8_t*>(source));
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(hn::RebindToSigned<FloatTag>(), bytes));
}

// The first `count` lanes, at most kLanes; lanes from `count` on are 0.
HWY_INLINE Floats LoadSome(const float* source, size_t count) {
  if (count >= kLanes) return hn::LoadU(FloatTag(), source);
  HWY_ALIGN float lanes[16] = {};
  std::memcpy(lanes, source, count * sizeof(float));
  return hn::Load(FloatTag(), lanes);
}

HWY_INLINE void StoreSome(Floats value, float* target, size_t count) {
  if (count >= kLanes) return hn::StoreU(value, FloatTag(), target);
  HWY_ALIGN float lanes[16];
  hn::Store(value, FloatTag(), lanes);
  std::memcpy(target, lanes, count * sizeof(float));
}

// The larger of a score and the best so far; a NaN score is ignored.
HWY_INLINE Floats MaxIgnoringNaN(Floats score, Floats best) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(score, best);  // maxps answers its second operand if either is NaN
#else
  return hn::IfThenElse(hn::Gt(score, best), score, best);
#endif
}

// Sum of sixteen lanes, always in the same order.
HWY_INLINE float SumOfSixteen(const float* lanes) {
  float sums[8];
  for (size_t i = 0; i < 8; ++i) sums[i] = lanes[i] + lanes[i + 8];
  for (size_t i = 0; i < 4; ++i) sums[i] = sums[i] + sums[i + 4];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// Lanes whose bit is set: lane i looks at bit i of `bits`.
HWY_INLINE FloatMask MaskFromBits(uint64_t bits) {
  uint8_t bytes[8];
  std::memcpy(bytes, &bits, sizeof bytes);
  return hn::LoadMaskBits(FloatTag(), bytes);
}

// sums[r] += factors[r * kStride] * row for each of kRows rows.
template <size_t kStride, size_t kRows>
HWY_INLINE void AddProducts(const float* HWY_RESTRICT factors, const Floats (&row)[kVectors],
                            Floats (&sums)[kRows][kVectors]) {
  ATTNSERVE_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    const Floats factor = hn::Set(FloatTag(), factors[r * kStride]);
    ATTNSERVE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(factor, row[v], sums[r][v]);
  }
}

// A stream that is fetched into the cache while something else is computed.
struct Prefetcher {
  uintptr_t address = 0;
  size_t step_bytes = 0;

  // A quarter, half or all of a stream for which a caller alone would advance by `step_bytes` in
  // each of `steps` steps: part `part` of the most that `parts` callers can share out evenly.
  // Callers beyond touch its begin.
  static HWY_INLINE Prefetcher Part(const void* stream, size_t step_bytes, size_t steps,
                                    size_t part, size_t parts) {
    const size_t shift = parts >= 4 ? 2 : parts / 2;
    const size_t step = part >> shift == 0 ? step_bytes >> shift : 0;
    return {reinterpret_cast<uintptr_t>(stream) + part * steps * step, step};
  }

  HWY_INLINE void Next() {
    hwy::Prefetch(reinterpret_cast<const char*>(address));
    address += step_bytes;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace simd
}  // namespace attnserve
HWY_AFTER_NAMESPACE();

#endif  // ATTNSERVE_LIB_SIMD_LANES_INL_H_
