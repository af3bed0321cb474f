#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "lib/simd/vector_ops.h"
#include "tests/unit/simd/attention_problem.h"
#include "tests/unit/simd/targets_test_util.h"

namespace attnserve::simd {
namespace {

constexpr double kUnit = 0x1p-24;        // largest relative error of one float32 rounding
constexpr double kExpError = 0x1p-22;    // 2 ulp, as vector_ops.h promises
constexpr double kTanhError = 0x1p-21;   // 4 ulp, see VectorOps.SoftcapIsAccurate
constexpr double kSecondOrder = 1.01;    // products of errors, each below 1 %
constexpr double kUnderflow = 0x1p-125;  // weights below e^-87.3 count as 0

struct ExactScore {
  double score = 0.0;
  double error = 0.0;  // of its float32 value
  bool visible = false;
  bool kept = true;
};

ExactScore Score(const Problem& problem, size_t row_index, int64_t key) {
  const ProblemOptions& options = problem.options;
  const ProblemRow& row = problem.rows[row_index];
  ExactScore result;
  result.visible = Sees(row, key);
  if (!row.keep.empty()) {
    result.kept = ((row.keep[static_cast<size_t>(key / 64)] >> (key % 64)) & 1) != 0;
  }
  double dot = 0.0;
  double absolute = 0.0;
  for (int64_t i = 0; i < options.d_k; ++i) {
    const double term =
        static_cast<double>(row.query[static_cast<size_t>(i)]) * problem.cache.key(key, i);
    dot += term;
    absolute += std::fabs(term);
  }
  const double scale = static_cast<double>(options.scale);
  const double steps = RoundingsPerStep() * static_cast<double>(options.d_k);
  result.score = dot * scale;
  // The products with the scale of the call and, in an I8 cache, with the key's.
  const double scalings = options.dtype == DType::kI8 ? 2.0 : 1.0;
  result.error =
      steps * kUnit * absolute * std::fabs(scale) + scalings * kUnit * std::fabs(result.score);
  if (options.softcap > 0.0f) {  // slope at most 1
    const double cap = static_cast<double>(options.softcap);
    result.score = cap * std::tanh(result.score / cap);
    result.error += (kTanhError + 2 * kUnit) * std::fabs(result.score);
  }
  if (!row.bias.empty()) {
    result.score += static_cast<double>(row.bias[static_cast<size_t>(key)]);
    result.error += kUnit * std::fabs(result.score);
  }
  if (options.alibi) {
    const int64_t position =
        options.key_positions ? problem.key_positions[static_cast<size_t>(key)] : key;
    const double distance = std::fabs(static_cast<double>(row.row.query_position - position));
    const double penalty = static_cast<double>(row.row.alibi_slope) * distance;
    result.score -= penalty;
    result.error += kUnit * (penalty + std::fabs(result.score));
  }
  return result;
}

// How often a weight may be rescaled: when the maximum moves from block to block of its stretch, in
// each merge of stretches, and by the sink.
double Rescales(const std::vector<ExactScore>& scores) {
  int64_t most = 0;
  int64_t moves = 0;
  double maximum = 0.0;
  for (size_t block = 0; block * 64 < scores.size(); ++block) {
    if (block % kBlocksPerStretch == 0) {
      maximum = -std::numeric_limits<double>::infinity();
      moves = 0;
    }
    double block_max = maximum;
    for (size_t key = block * 64; key < std::min(scores.size(), block * 64 + 64); ++key) {
      if (scores[key].visible) block_max = std::max(block_max, scores[key].score);
    }
    if (block_max > maximum) ++moves;
    maximum = block_max;
    most = std::max(most, moves);
  }
  const int64_t merges = static_cast<int64_t>(scores.size()) / kStretchTokens;
  return static_cast<double>(most + merges + 1);
}

}  // namespace

ExactRow ComputeExactly(const Problem& problem, size_t row_index) {
  const ProblemOptions& options = problem.options;
  const size_t d_v = static_cast<size_t>(options.d_v);
  std::vector<ExactScore> scores;
  double maximum = static_cast<double>(options.sink_logit);
  double attended = 0;
  for (int64_t key = 0; key < options.tokens; ++key) {
    scores.push_back(Score(problem, row_index, key));
    if (!scores.back().visible) continue;
    maximum = std::max(maximum, scores.back().score);
    ++attended;
  }
  ExactRow exact;
  exact.output.assign(d_v, 0.0);
  exact.tolerance.assign(d_v, 0.0);
  if (attended == 0) {
    exact.lse = -std::numeric_limits<double>::infinity();
    return exact;
  }

  // Each rescaling multiplies by e^x of a rounded difference; the differences telescope, so their
  // roundings are those of one of size |score - maximum|.
  const double rescales = Rescales(scores);
  const double value_scalings = options.dtype == DType::kI8 ? 1.0 : 0.0;
  const double steps = RoundingsPerStep() * attended + rescales + value_scalings;
  double sum = std::exp(static_cast<double>(options.sink_logit) - maximum);
  double sum_error = sum * kExpError;
  std::vector<double> absolute(d_v, 0.0);
  std::vector<double> error(d_v, 0.0);
  for (int64_t key = 0; key < options.tokens; ++key) {
    const ExactScore& score = scores[static_cast<size_t>(key)];
    if (!score.visible) continue;
    const double weight = std::exp(score.score - maximum);
    const double relative = score.error + 2 * kUnit * std::fabs(score.score - maximum) +
                            (1 + rescales) * (kExpError + kUnit);
    EXPECT_LT(relative, 0.01) << "the first-order bound does not hold";
    sum += weight;
    sum_error += weight * relative;
    if (!score.kept) continue;
    for (size_t i = 0; i < d_v; ++i) {
      const double value = problem.cache.value(key, static_cast<int64_t>(i));
      exact.output[i] += weight * value;
      absolute[i] += std::fabs(value);
      error[i] += weight * std::fabs(value) * (relative + steps * kUnit);
    }
  }
  const double sum_relative = sum_error / sum + (attended / 16.0 + 5.0 + rescales) * kUnit;
  const double factor = static_cast<double>(problem.value_factor()) / sum;
  for (size_t i = 0; i < d_v; ++i) {
    exact.output[i] *= factor;
    exact.tolerance[i] = kSecondOrder * (error[i] * factor +
                                         std::fabs(exact.output[i]) * (sum_relative + 4 * kUnit)) +
                         kUnderflow * (absolute[i] + 1.0);
  }
  exact.lse = maximum + std::log(sum);
  exact.lse_tolerance =
      kSecondOrder * (sum_relative + kUnit * (std::fabs(exact.lse) + std::fabs(maximum)));
  return exact;
}

void ExpectMatchesExact(const Problem& problem, const std::vector<RowResult>& results) {
  ASSERT_EQ(results.size(), problem.rows.size());
  for (size_t r = 0; r < results.size(); ++r) {
    SCOPED_TRACE("row " + std::to_string(r));
    const ExactRow exact = ComputeExactly(problem, r);
    for (size_t i = 0; i < exact.output.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(results[r].output[i]), exact.output[i], exact.tolerance[i])
          << "element " << i;
    }
    if (std::isinf(exact.lse)) {
      ASSERT_EQ(static_cast<double>(results[r].lse), exact.lse);
    } else {
      ASSERT_NEAR(static_cast<double>(results[r].lse), exact.lse, exact.lse_tolerance);
    }
  }
}

}  // namespace attnserve::simd
