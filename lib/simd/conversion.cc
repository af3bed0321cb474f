#include <cstring>
#include <limits>

#include "lib/simd/vector_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/simd/conversion.cc"
#include "lib/simd/targets.h"
// clang-format off: Highway wants this order
#include "hwy/foreach_target.h"
#include "lib/simd/lanes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace attnserve {
namespace simd {
namespace HWY_NAMESPACE {

// To nearest, ties to even, in integers; NaN keeps its upper bits and becomes quiet.
HWY_INLINE void StoreLanes(Floats value, BF16* target) {
  const WordTag dw;
  const Words bits = hn::BitCast(dw, value);
  const Words odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(dw, 1u));
  const Words rounded = hn::Add(bits, hn::Add(odd, hn::Set(dw, 0x7fffu)));
  const Words nan = hn::Or(bits, hn::Set(dw, 0x00400000u));
  const Floats chosen = hn::IfThenElse(hn::IsNaN(value), hn::BitCast(FloatTag(), nan),
                                       hn::BitCast(FloatTag(), rounded));
  const hn::RebindToSigned<FloatTag> di;
  const auto upper = hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(dw, chosen)));
  hn::StoreU(hn::DemoteTo(HalfTag(), upper), HalfTag(), reinterpret_cast<uint16_t*>(target));
}

HWY_INLINE void StoreLanes(Floats value, F16* target) {
#if ATTNSERVE_NATIVE_F16
  const hn::Rebind<hwy::float16_t, FloatTag> d16;
  const auto half = hn::BitCast(HalfTag(), hn::DemoteTo(d16, value));
  hn::StoreU(half, HalfTag(), reinterpret_cast<uint16_t*>(target));
#else
  HWY_ALIGN float lanes[kLanes];
  hn::Store(value, FloatTag(), lanes);
  for (size_t i = 0; i < kLanes; ++i) {
    const uint16_t bits = F32ToF16(lanes[i]);
    std::memcpy(target + i, &bits, sizeof bits);
  }
#endif
}

template <class T>
void WidenAll(const T* source, size_t count, float* target) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(LoadLanes(source + i), FloatTag(), target + i);
  }
  if (i == count) return;
  T rest[kLanes] = {};
  std::memcpy(rest, source + i, (count - i) * sizeof(T));
  StoreSome(LoadLanes(rest), target + i, count - i);
}

template <class T>
void NarrowAll(const float* source, size_t count, T* target) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    StoreLanes(hn::LoadU(FloatTag(), source + i), target + i);
  }
  if (i == count) return;
  T rest[kLanes] = {};
  StoreLanes(LoadSome(source + i, count - i), rest);
  std::memcpy(target + i, rest, (count - i) * sizeof(T));
}

float LargestMagnitude(const float* source, int64_t count) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const size_t size = static_cast<size_t>(count);
  auto largest = hn::Zero(di);  // magnitudes order like the integers of their bits
  for (size_t i = 0; i < size; i += kLanes) {
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(LoadSome(source + i, size - i))));
  }
  const float magnitude = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, largest)));
  const bool finite = magnitude <= std::numeric_limits<float>::max();
  return finite ? magnitude : std::numeric_limits<float>::quiet_NaN();
}

void Quantize(const float* source, int64_t count, float scale, int8_t* target) {
  const FloatTag d;
  const hn::Rebind<int8_t, FloatTag> d8;
  const size_t size = static_cast<size_t>(count);
  if (!(scale > 0.0f)) {
    std::memset(target, 0, size);
    return;
  }
  const Floats most = hn::Set(d, 127.0f);
  for (size_t i = 0; i < size; i += kLanes) {
    const Floats scaled = hn::Div(LoadSome(source + i, size - i), hn::Set(d, scale));
    const Floats bounded = hn::Max(hn::Min(scaled, most), hn::Neg(most));
    const auto bytes = hn::DemoteTo(d8, hn::NearestInt(bounded));
    if (size - i >= kLanes) {
      hn::StoreU(bytes, d8, target + i);
    } else {
      HWY_ALIGN int8_t rest[kLanes];
      hn::Store(bytes, d8, rest);
      std::memcpy(target + i, rest, size - i);
    }
  }
}

void Widen(DType type, const void* source, int64_t count, float* target) {
  const size_t size = static_cast<size_t>(count);
  switch (type) {
    case DType::kF16:
      return WidenAll(static_cast<const F16*>(source), size, target);
    case DType::kBF16:
      return WidenAll(static_cast<const BF16*>(source), size, target);
    default:
      std::memcpy(target, source, size * sizeof(float));
  }
}

void Narrow(const float* source, int64_t count, DType type, void* target) {
  const size_t size = static_cast<size_t>(count);
  switch (type) {
    case DType::kF16:
      return NarrowAll(source, size, static_cast<F16*>(target));
    case DType::kBF16:
      return NarrowAll(source, size, static_cast<BF16*>(target));
    default:
      std::memcpy(target, source, size * sizeof(float));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace simd
}  // namespace attnserve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnserve::simd {

HWY_EXPORT(LargestMagnitude);
HWY_EXPORT(Quantize);
HWY_EXPORT(Widen);
HWY_EXPORT(Narrow);

float LargestMagnitude(const float* source, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(LargestMagnitude)(source, count);
}

void Quantize(const float* source, int64_t count, float scale, int8_t* target) {
  HWY_DYNAMIC_DISPATCH(Quantize)(source, count, scale, target);
}

void Widen(DType type, const void* source, int64_t count, float* target) {
  if (count > 0) HWY_DYNAMIC_DISPATCH(Widen)(type, source, count, target);
}

void Narrow(const float* source, int64_t count, DType type, void* target) {
  if (count > 0) HWY_DYNAMIC_DISPATCH(Narrow)(source, count, type, target);
}

}  // namespace attnserve::simd
#endif  // HWY_ONCE
