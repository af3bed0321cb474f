// Weight matrices for tests, and the float64 twin of their products.
#ifndef ATTNSERVE_TESTS_UNIT_GEMM_WEIGHT_FIXTURE_H_
#define ATTNSERVE_TESTS_UNIT_GEMM_WEIGHT_FIXTURE_H_

#include <cstdint>
#include <vector>

#include "lib/gemm/packed_matrix.h"

namespace attnserve {

enum class WeightOrder { kOutIn, kInOut };  // row-major [out, in] or [in, out]

// Random weights, as they would lie in a file: at an odd address, with gaps of NaN between rows.
class TestWeights {
 public:
  TestWeights(DType dtype, int64_t in, int64_t out, WeightOrder order, uint32_t seed);

  const WeightView& view() const { return view_; }
  // Element as stored: rounded to the type.
  float At(int64_t in, int64_t out) const;

 private:
  std::vector<uint8_t> bytes_;
  WeightView view_;
};

// Rows [rows, K] with gaps of NaN between them.
struct TestRows {
  TestRows(int64_t rows, int64_t k, uint32_t seed);
  const float* row(int64_t i) const { return values.data() + i * stride; }
  float* row(int64_t i) { return values.data() + i * stride; }

  int64_t stride;
  std::vector<float> values;
};

// One output in float64 and how far a float32 result may be from it.
struct Expected {
  double value;
  double tolerance;
};

// Products of `rows` rows with the columns of `weights` side by side: [rows, N].
//
// Tolerance: a float32 sum of K products in any order has an error of at most gamma(n) times the
// sum of the products' magnitudes, gamma(n) = n u / (1 - n u), u = 2^-24, where n counts the
// roundings one product passes through: its own, at most K additions and the bias's (Higham,
// Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.1). Subnormal results add
// at most half the least subnormal for each operation. The twin's own error, with u = 2^-53, is
// less than 2^-28 of this.
std::vector<Expected> Float64Product(const TestRows& x, int64_t rows,
                                     const std::vector<const TestWeights*>& weights,
                                     const std::vector<float>& bias);

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_GEMM_WEIGHT_FIXTURE_H_
