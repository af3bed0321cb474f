#include "tests/unit/gemm/weight_fixture.h"

#include <cmath>
#include <limits>
#include <random>

namespace attnserve {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TestWeights::TestWeights(DType dtype, int64_t in, int64_t out, WeightOrder order, uint32_t seed) {
  const bool out_in = order == WeightOrder::kOutIn;
  const int64_t row_elements = (out_in ? in : out) + 3;
  const int64_t elements = row_elements * (out_in ? out : in);
  std::vector<float> values(static_cast<size_t>(elements), kNaN);
  view_ = {dtype, nullptr, in, out, out_in ? 1 : row_elements, out_in ? row_elements : 1};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < in; ++i) {
    for (int64_t j = 0; j < out; ++j) {
      values[static_cast<size_t>(i * view_.in_stride + j * view_.out_stride)] = normal(random);
    }
  }
  bytes_.resize(values.size() * ElementSize(dtype) + 1);
  StoreFromF32(values.data(), elements, dtype, bytes_.data() + 1);
  view_.data = bytes_.data() + 1;
}

float TestWeights::At(int64_t in, int64_t out) const {
  const int64_t index = in * view_.in_stride + out * view_.out_stride;
  float value;
  LoadAsF32(view_.dtype,
            static_cast<const uint8_t*>(view_.data) +
                index * static_cast<int64_t>(ElementSize(view_.dtype)),
            1, &value);
  return value;
}

TestRows::TestRows(int64_t rows, int64_t k, uint32_t seed)
    : stride(k + 7), values(static_cast<size_t>(rows * stride), kNaN) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i) row(r)[i] = normal(random);
  }
}

std::vector<Expected> Float64Product(const TestRows& x, int64_t rows,
                                     const std::vector<const TestWeights*>& weights,
                                     const std::vector<float>& bias) {
  const int64_t k = weights.front()->view().in;
  std::vector<std::vector<double>> columns;
  for (const TestWeights* matrix : weights) {
    for (int64_t out = 0; out < matrix->view().out; ++out) {
      std::vector<double>& column = columns.emplace_back();
      for (int64_t i = 0; i < k; ++i) column.push_back(matrix->At(i, out));
    }
  }
  const double n = static_cast<double>(k) + 2.0;
  const double gamma = n * 0x1p-24 / (1.0 - n * 0x1p-24);
  std::vector<Expected> result;
  for (int64_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns.size(); ++c) {
      double sum = bias.empty() ? 0.0 : bias[c];
      double magnitude = std::abs(sum);
      for (size_t i = 0; i < columns[c].size(); ++i) {
        const double product = x.row(r)[i] * columns[c][i];
        sum += product;
        magnitude += std::abs(product);
      }
      result.push_back({sum, gamma * magnitude + n * 0x1p-150});
    }
  }
  return result;
}

}  // namespace attnserve
