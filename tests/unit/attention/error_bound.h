// How far a computation in float32 may lie from the float64 reference: a forward error analysis
// of the whole layer, element by element, from the unit roundoff and the values involved.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_ERROR_BOUND_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_ERROR_BOUND_H_

#include "lib/attention/layer_spec.h"
#include "lib/attention/reference.h"
#include "lib/base/element_type.h"

namespace attnserve {

// Relative errors of single steps.
struct Precision {
  double unit = 0x1p-24;  // of one float32 operation, round to nearest
  double exp = 0x1p-22;   // of e^x: 2 ulp (lib/simd/vector_ops.h)
  double input = 0.0;     // of the elements of x, context, q, k, v as given
  double cached = 0.0;    // of cached elements as given: see CachedPrecision
};

// Relative error with which the kernels use an element of a cache of `type` as it is read back. In
// an I8 cache that is rounded, and the kernels multiply scores and weights by its scale.
constexpr double CachedPrecision(DType type) { return type == DType::kI8 ? 3 * 0x1p-24 : 0.0; }

// Largest absolute error of each element of a reference::Output (same shapes). present_* hold what
// the cache's rounding adds; cached keys and values count as exact.
struct ErrorBounds {
  reference::Values output;
  reference::Values scores, softcapped, masked, weights;
  reference::Values lse;
  reference::Values context;
  reference::Values query;
  reference::Values present_key, present_value;
};

// First-order bounds, u the unit roundoff:
//   n-term sum of products         n u sum |a_i b_i|, whatever the order (Higham 2002, (3.5))
//   head norm, rotation            propagated through the derivative, plus u an operation
//   score                          the error of q k^T, plus u for the scale and u for the product
//   weight exp(m_j - max) / sum    relative: error of m_j, u |m_j - max| for the subtraction, the
//                                  error of exp, the same again for each rescaling when a later
//                                  block of keys raises the maximum; the sum's own error is the
//                                  mean of these over the weights, plus u an addition
//   output                         the context's error through |W_o|, plus the product's
// `reference` is the result for `input` and a spec whose cache is F32: rounding to a narrower cache
// is part of the bound.
ErrorBounds BoundErrors(const LayerSpec& spec, const reference::Weights& weights,
                        const reference::Input& input, const reference::Output& reference,
                        const Precision& precision);

// Error of rounding `value` to `type` once; for I8 of rounding an element of a vector whose largest
// one is `value`.
double RoundingError(DType type, double value);

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_ERROR_BOUND_H_
