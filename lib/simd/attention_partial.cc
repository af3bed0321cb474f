#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/simd/attention.h"
#include "lib/simd/attention_layout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/simd/attention_partial.cc"
#include "lib/simd/targets.h"
// clang-format off: Highway wants this order
#include "hwy/foreach_target.h"
#include "lib/simd/exp-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace attnserve {
namespace simd {
namespace HWY_NAMESPACE {

// target = source * factor + target * target_factor over `count` floats, a multiple of 16.
HWY_INLINE void ScaleAndAdd(const float* source, float factor, float target_factor, size_t count,
                            float* target) {
  const FloatTag d;
  const Floats factors = hn::Set(d, factor);
  const Floats target_factors = hn::Set(d, target_factor);
  for (size_t i = 0; i < count; i += kLanes) {
    const Floats scaled = hn::Mul(hn::LoadU(d, target + i), target_factors);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, source + i), factors, scaled), d, target + i);
  }
}

void MergePartial(int64_t value_head_size, const float* next, float* total) {
  const size_t size = static_cast<size_t>(PartialFloats(value_head_size));
  if (SumOfSixteen(next + kPartialSum) == 0.0f) return;
  if (SumOfSixteen(total + kPartialSum) == 0.0f) {
    std::copy_n(next, size, total);
    return;
  }
  const float maximum = std::max(total[kPartialMax], next[kPartialMax]);
  const float next_factor = Exp(next[kPartialMax] - maximum);
  const float total_factor = Exp(total[kPartialMax] - maximum);
  ScaleAndAdd(next + kPartialSum, next_factor, total_factor, 16, total + kPartialSum);
  ScaleAndAdd(next + kPartialValues, next_factor, total_factor, size - kPartialValues,
              total + kPartialValues);
  total[kPartialMax] = maximum;
}

// output = values * weight + 0, every NaN the same one.
HWY_INLINE void ScaleValues(const float* values, float weight, size_t count, float* output) {
  const FloatTag d;
  const Floats weights = hn::Set(d, weight);
  const Floats nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < count; i += kLanes) {
    const Floats scaled = hn::Add(hn::Mul(hn::LoadU(d, values + i), weights), hn::Zero(d));
    const Floats value = hn::IfThenElse(hn::IsNaN(scaled), nan, scaled);
    StoreSome(value, output + i, count - i);
  }
}

float FinishRow(int64_t value_head_size, const float* partial, float sink_logit, float value_factor,
                float* output) {
  const size_t count = static_cast<size_t>(value_head_size);
  float sum = SumOfSixteen(partial + kPartialSum);
  float maximum = partial[kPartialMax];
  if (sum == 0.0f) {
    std::fill_n(output, count, 0.0f);
    return -std::numeric_limits<float>::infinity();
  }
  float rescale = 1.0f;
  if (sink_logit > -std::numeric_limits<float>::infinity()) {
    const float top = std::max(maximum, sink_logit);
    rescale = Exp(maximum - top);
    sum = sum * rescale + Exp(sink_logit - top);
    maximum = top;
  }
  ScaleValues(partial + kPartialValues, rescale / sum * value_factor, count, output);
  const double lse = static_cast<double>(maximum) + std::log(static_cast<double>(sum));
  return std::isnan(lse) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(lse);
}

}  // namespace HWY_NAMESPACE
}  // namespace simd
}  // namespace attnserve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnserve::simd {

HWY_EXPORT(MergePartial);
HWY_EXPORT(FinishRow);

void MergePartial(int64_t value_head_size, const float* next, float* total) {
  HWY_DYNAMIC_DISPATCH(MergePartial)(value_head_size, next, total);
}

float FinishRow(int64_t value_head_size, const float* partial, float sink_logit, float value_factor,
                float* output) {
  return HWY_DYNAMIC_DISPATCH(FinishRow)(value_head_size, partial, sink_logit, value_factor,
                                         output);
}

}  // namespace attnserve::simd
#endif  // HWY_ONCE
