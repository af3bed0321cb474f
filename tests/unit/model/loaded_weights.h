// Weights of a layer as the float64 reference takes them.
#ifndef ATTNSERVE_TESTS_UNIT_MODEL_LOADED_WEIGHTS_H_
#define ATTNSERVE_TESTS_UNIT_MODEL_LOADED_WEIGHTS_H_

#include <vector>

#include "lib/attention/attention_layer.h"
#include "lib/attention/reference.h"
#include "lib/base/tensor.h"

namespace attnserve {

// [in, out], read through the view's strides; empty without data.
inline reference::Values MatrixValues(const WeightView& view) {
  reference::Values values;
  if (view.data == nullptr) return values;
  for (int64_t in = 0; in < view.in; ++in) {
    for (int64_t out = 0; out < view.out; ++out) {
      const TensorView tensor{view.dtype, {}, view.data};
      values.push_back(tensor.At(in * view.in_stride + out * view.out_stride));
    }
  }
  return values;
}

inline reference::Weights ReferenceWeights(const LayerWeights& weights) {
  const auto doubles = [](const std::vector<float>& values) {
    return reference::Values(values.begin(), values.end());
  };
  return {MatrixValues(weights.query),  MatrixValues(weights.key),   MatrixValues(weights.value),
          MatrixValues(weights.output), doubles(weights.query_bias), doubles(weights.key_bias),
          doubles(weights.value_bias),  doubles(weights.output_bias)};
}

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_MODEL_LOADED_WEIGHTS_H_
