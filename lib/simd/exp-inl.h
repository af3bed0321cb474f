// e^x and tanh, the same approximation everywhere.
#include "lib/simd/lanes-inl.h"

#if defined(ATTNSERVE_LIB_SIMD_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNSERVE_LIB_SIMD_EXP_INL_H_
#undef ATTNSERVE_LIB_SIMD_EXP_INL_H_
#else
#define ATTNSERVE_LIB_SIMD_EXP_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace attnserve {
namespace simd {
namespace HWY_NAMESPACE {

// Below this e^x counts as 0: just above ln 2^-126, so that no result is subnormal.
constexpr float kExpLowest = -87.3f;

// e^x = 2^n (1 + q), with n = x / ln 2 rounded and q = e^r - 1, r = x - n ln 2, |r| <= ln 2 / 2.
struct ExpParts {
  Floats power;      // 2^n
  Floats remainder;  // q
};

// Adding 1.5 * 2^23 rounds to an integer in the low bits; the 127 makes that integer the biased
// exponent, which a shift moves into place. ln 2 is taken off in two parts, the first so short that
// n times it is exact (Cody and Waite 1980). q = r + r^2 P(r): P interpolates (e^r - 1 - r) / r^2
// at the Chebyshev nodes of [-0.3468, 0.3468]; relative error of 1 + q: 1.1e-8.
HWY_INLINE ExpParts SplitExp(Floats x) {
  const FloatTag d;
  const Floats magic = hn::Set(d, 0x1.8p23f + 127.0f);
  const Floats shifted = hn::MulAdd(x, hn::Set(d, 0x1.715476p0f), magic);
  const Floats n = hn::Sub(shifted, magic);
  const Floats high = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  const Floats r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), high);
  Floats p = hn::Set(d, 0x1.6d113ep-10f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.120ba2p-7f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.55551ap-5f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.5554dcp-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  const Words exponent = hn::ShiftLeft<23>(hn::BitCast(WordTag(), shifted));
  return {hn::BitCast(d, exponent), hn::MulAdd(hn::Mul(p, r), r, r)};
}

// e^x for x <= 0; 0 below kExpLowest, NaN for NaN.
HWY_INLINE Floats Exp(Floats x) {
  const ExpParts parts = SplitExp(x);
  const Floats value = hn::MulAdd(parts.power, parts.remainder, parts.power);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(FloatTag(), kExpLowest)), value);
}

HWY_INLINE float Exp(float x) { return hn::GetLane(Exp(hn::Set(FloatTag(), x))); }

// tanh |x| = -E / (E + 2) with E = e^(-2|x|) - 1 = 2^n q + (2^n - 1), which loses no digits near 0.
// From |x| = 20 on the result rounds to 1.
HWY_INLINE Floats Tanh(Floats x) {
  const FloatTag d;
  const Floats one = hn::Set(d, 1.0f);
  const Floats lowest = hn::Set(d, -40.0f);
  const Floats wanted = hn::Mul(hn::Abs(x), hn::Set(d, -2.0f));
  const ExpParts parts = SplitExp(hn::IfThenElse(hn::Lt(wanted, lowest), lowest, wanted));
  const Floats e = hn::MulAdd(parts.power, parts.remainder, hn::Sub(parts.power, one));
  return hn::CopySign(hn::Div(hn::Neg(e), hn::Add(e, hn::Set(d, 2.0f))), x);
}

// cap * tanh(score / cap).
HWY_INLINE Floats Softcap(Floats score, Floats cap) {
  return hn::Mul(cap, Tanh(hn::Div(score, cap)));
}

}  // namespace HWY_NAMESPACE
}  // namespace simd
}  // namespace attnserve
HWY_AFTER_NAMESPACE();

#endif  // ATTNSERVE_LIB_SIMD_EXP_INL_H_
