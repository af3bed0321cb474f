#include "lib/simd/vector_ops.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/simd/vector_ops.cc"
#include "lib/simd/targets.h"
// clang-format off: Highway wants this order
#include "hwy/foreach_target.h"
#include "lib/simd/exp-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace attnserve {
namespace simd {
namespace HWY_NAMESPACE {

const char* InstructionSet() { return hwy::TargetName(HWY_TARGET); }

const char* KernelFamily() { return HWY_NATIVE_FMA ? "fma" : "mul-add"; }

void ExpAll(const float* source, int64_t count, float* target) {
  const size_t size = static_cast<size_t>(count);
  for (size_t i = 0; i < size; i += kLanes) {
    StoreSome(Exp(LoadSome(source + i, size - i)), target + i, size - i);
  }
}

// Zero times a finite number is zero, times anything else NaN.
bool AllFinite(const float* source, int64_t count) {
  const FloatTag d;
  const size_t size = static_cast<size_t>(count);
  Floats zeros = hn::Zero(d);
  for (size_t i = 0; i < size; i += kLanes) {
    zeros = hn::MulAdd(LoadSome(source + i, size - i), hn::Zero(d), zeros);
  }
  return hn::AllTrue(d, hn::Eq(zeros, hn::Zero(d)));
}

// (a, b) turned by (cosine, sine).
HWY_INLINE void RotatePair(Floats cosine, Floats sine, Floats& a, Floats& b) {
  const Floats turned = hn::NegMulAdd(b, sine, hn::Mul(a, cosine));
  b = hn::MulAdd(a, sine, hn::Mul(b, cosine));
  a = turned;
}

void RotateHalves(float* head, size_t pairs, const float* cosine, const float* sine) {
  float* upper = head + pairs;
  for (size_t i = 0; i < pairs; i += kLanes) {
    const size_t count = pairs - i;
    Floats a = LoadSome(head + i, count);
    Floats b = LoadSome(upper + i, count);
    RotatePair(LoadSome(cosine + i, count), LoadSome(sine + i, count), a, b);
    StoreSome(a, head + i, count);
    StoreSome(b, upper + i, count);
  }
}

void RotateInterleaved(float* head, size_t pairs, const float* cosine, const float* sine) {
  const FloatTag d;
  for (size_t i = 0; i < pairs; i += kLanes) {
    const size_t count = std::min(kLanes, pairs - i);
    HWY_ALIGN float lanes[2 * kLanes] = {};
    std::copy_n(head + 2 * i, 2 * count, lanes);
    Floats a;
    Floats b;
    hn::LoadInterleaved2(d, lanes, a, b);
    RotatePair(LoadSome(cosine + i, count), LoadSome(sine + i, count), a, b);
    hn::StoreInterleaved2(a, b, d, lanes);
    std::copy_n(lanes, 2 * count, head + 2 * i);
  }
}

void Rotate(float* head, int64_t dimension, bool interleaved, const float* cosine,
            const float* sine) {
  const size_t pairs = static_cast<size_t>(dimension / 2);
  if (interleaved) {
    RotateInterleaved(head, pairs, cosine, sine);
  } else {
    RotateHalves(head, pairs, cosine, sine);
  }
}

// Sum of term(value) over the elements, in 16 lanes (index modulo 16).
template <class Term>
HWY_INLINE float SumTerms(const float* source, size_t count, const Term& term) {
  const FloatTag d;
  HWY_ALIGN float lanes[16] = {};
  for (size_t i = 0; i < count; i += kLanes) {
    float* lane = lanes + i % 16;
    const Floats value = term(LoadSome(source + i, count - i));
    StoreSome(hn::Add(hn::Load(d, lane), value), lane, count - i);
  }
  return SumOfSixteen(lanes);
}

void Normalize(const float* source, int64_t count, bool center, float epsilon, const float* weight,
               const float* bias, float* target) {
  const FloatTag d;
  const size_t size = static_cast<size_t>(count);
  const float elements = static_cast<float>(count);
  const float mean =
      center ? SumTerms(source, size, [](Floats x) HWY_ATTR { return x; }) / elements : 0.0f;
  const Floats means = hn::Set(d, mean);
  const float squares = SumTerms(source, size, [means](Floats x) HWY_ATTR {
    const Floats deviation = hn::Sub(x, means);
    return hn::Mul(deviation, deviation);
  });
  const Floats scale = hn::Set(d, 1.0f / std::sqrt(squares / elements + epsilon));
  for (size_t i = 0; i < size; i += kLanes) {
    const size_t lanes = size - i;
    Floats value = hn::Mul(hn::Sub(LoadSome(source + i, lanes), means), scale);
    if (weight != nullptr) value = hn::Mul(value, LoadSome(weight + i, lanes));
    if (bias != nullptr) value = hn::Add(value, LoadSome(bias + i, lanes));
    StoreSome(value, target + i, lanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace simd
}  // namespace attnserve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnserve::simd {

HWY_EXPORT(InstructionSet);
HWY_EXPORT(KernelFamily);
HWY_EXPORT(ExpAll);
HWY_EXPORT(AllFinite);
HWY_EXPORT(Rotate);
HWY_EXPORT(Normalize);

const char* InstructionSet() { return HWY_DYNAMIC_DISPATCH(InstructionSet)(); }

const char* KernelFamily() { return HWY_DYNAMIC_DISPATCH(KernelFamily)(); }

void Exp(const float* source, int64_t count, float* target) {
  HWY_DYNAMIC_DISPATCH(ExpAll)(source, count, target);
}

bool AllFinite(const float* source, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(AllFinite)(source, count);
}

void Rotate(float* head, int64_t dimension, bool interleaved, const float* cosine,
            const float* sine) {
  HWY_DYNAMIC_DISPATCH(Rotate)(head, dimension, interleaved, cosine, sine);
}

void Normalize(const float* source, int64_t count, bool center, float epsilon, const float* weight,
               const float* bias, float* target) {
  HWY_DYNAMIC_DISPATCH(Normalize)(source, count, center, epsilon, weight, bias, target);
}

}  // namespace attnserve::simd
#endif  // HWY_ONCE
