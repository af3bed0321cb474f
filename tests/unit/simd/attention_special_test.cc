// Attention where something is missing, infinite or not a number.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "gtest/gtest.h"
#include "lib/simd/attention.h"
#include "lib/simd/attention_layout.h"
#include "tests/unit/simd/attention_problem.h"
#include "tests/unit/simd/targets_test_util.h"

namespace attnserve::simd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ProblemOptions SomeOptions(int64_t tokens, int64_t rows) {
  ProblemOptions options;
  options.d_k = 20;
  options.d_v = 20;
  options.tokens = tokens;
  options.rows = rows;
  return options;
}

void Hide(ProblemRow& row, int64_t key) {
  row.mask[static_cast<size_t>(key / 64)] &= ~(uint64_t{1} << (key % 64));
}

bool AllNan(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isnan(v); });
}

bool IsPositiveZero(float value) { return value == 0.0f && !std::signbit(value); }

bool IsEmptyRow(const RowResult& result) {
  return result.lse == -kInf &&
         std::all_of(result.output.begin(), result.output.end(), IsPositiveZero);
}

TEST(AttentionSpecial, HiddenKeysAndValuesNeverLeak) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    for (const float poison : {kNan, kInf, -kInf}) {
      ForEachTarget([&] {
        ProblemOptions options = SomeOptions(200, 7);
        options.mask = true;
        options.dtype = dtype;
        Problem problem(options, 31);
        for (const int64_t key : {0, 5, 64, 100, 199}) {
          for (ProblemRow& row : problem.rows) Hide(row, key);
        }
        const std::vector<RowResult> clean = ComputeAll(problem);
        for (const int64_t key : {0, 5, 64, 100, 199}) {
          for (int64_t i = 0; i < 20; ++i) {
            problem.cache.SetKey(key, i, poison);
            problem.cache.SetValue(key, i, poison);
          }
        }
        const std::vector<RowResult> poisoned = ComputeAll(problem);
        for (size_t r = 0; r < clean.size(); ++r) {
          ASSERT_TRUE(SameBits(clean[r], poisoned[r])) << "row " << r;
        }
      });
    }
  }
}

// Rows of a group differ in what they see: poison hidden from one row must not reach it through
// another.
TEST(AttentionSpecial, PoisonOneRowSeesStaysInThatRow) {
  ForEachTarget([] {
    ProblemOptions options = SomeOptions(100, 6);
    options.mask = true;
    Problem problem(options, 32);
    for (ProblemRow& row : problem.rows) Hide(row, 70);
    problem.rows[2].mask[1] |= uint64_t{1} << 6;
    const std::vector<RowResult> clean = ComputeAll(problem);
    problem.cache.SetValue(70, 3, kNan);
    const std::vector<RowResult> poisoned = ComputeAll(problem);
    for (size_t r = 0; r < clean.size(); ++r) {
      EXPECT_EQ(SameBits(clean[r], poisoned[r]), r != 2) << "row " << r;
    }
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(std::isnan(poisoned[2].output[i]), i == 3) << "element " << i;
    }
  });
}

TEST(AttentionSpecial, NanInAttendedKeyMakesTheRowNan) {
  ForEachTarget([] {
    for (const int64_t key : {0, 40, 1500}) {
      Problem problem(SomeOptions(2000, 3), 33);
      problem.cache.SetKey(key, 7, kNan);
      for (const RowResult& result : ComputeAll(problem)) {
        EXPECT_TRUE(AllNan(result.output));
        EXPECT_TRUE(std::isnan(result.lse));
      }
    }
  });
}

TEST(AttentionSpecial, EveryNanIsTheSameOne) {
  Problem problem(SomeOptions(64, 1), 34);
  float odd;
  const uint32_t bits = 0xffc12345u;
  std::memcpy(&odd, &bits, sizeof odd);
  problem.cache.SetValue(3, 2, odd);
  const RowResult result = ComputeAll(problem)[0];
  EXPECT_EQ(std::memcmp(&result.output[2], &kNan, sizeof kNan), 0);
}

TEST(AttentionSpecial, InfiniteAttendedValueReachesOutput) {
  ForEachTarget([] {
    Problem problem(SomeOptions(64, 2), 35);
    problem.cache.SetValue(10, 4, kInf);
    for (const RowResult& result : ComputeAll(problem)) {
      EXPECT_EQ(result.output[4], kInf);
      EXPECT_TRUE(std::isfinite(result.output[3]));
    }
  });
}

TEST(AttentionSpecial, PositiveInfiniteScoreGivesNan) {
  ForEachTarget([] {
    for (const int64_t key : {0, 100, 1999}) {
      ProblemOptions options = SomeOptions(2000, 2);
      options.bias = true;
      Problem problem(options, 36);
      problem.rows[0].bias[static_cast<size_t>(key)] = kInf;
      const std::vector<RowResult> results = ComputeAll(problem);
      EXPECT_TRUE(AllNan(results[0].output));
      EXPECT_TRUE(std::isnan(results[0].lse));
      EXPECT_FALSE(AllNan(results[1].output));
    }
  });
}

TEST(AttentionSpecial, BiasOfMinusInfinityHidesLikeAMask) {
  ForEachTarget([] {
    ProblemOptions options = SomeOptions(200, 6);
    options.bias = true;
    options.mask = true;
    Problem masked(options, 37);
    for (ProblemRow& row : masked.rows) std::fill(row.mask.begin(), row.mask.end(), ~uint64_t{0});
    Problem biased(options, 37);
    for (ProblemRow& row : biased.rows) std::fill(row.mask.begin(), row.mask.end(), ~uint64_t{0});
    for (size_t r = 0; r < masked.rows.size(); ++r) {
      for (int64_t key = static_cast<int64_t>(r); key < 200; key += 3) {
        Hide(masked.rows[r], key);
        biased.rows[r].bias[static_cast<size_t>(key)] = -kInf;
      }
    }
    for (const bool nonfinite : {false, true}) {
      if (nonfinite) {  // hidden from row 0 only
        masked.cache.SetValue(3, 1, kNan);
        biased.cache.SetValue(3, 1, kNan);
      }
      const std::vector<RowResult> a = ComputeAll(masked);
      const std::vector<RowResult> b = ComputeAll(biased);
      for (size_t r = 0; r < a.size(); ++r) EXPECT_TRUE(SameBits(a[r], b[r])) << "row " << r;
      EXPECT_FALSE(std::isnan(b[0].output[1]));
    }
  });
}

TEST(AttentionSpecial, RowWithNothingToAttendIsZero) {
  ForEachTarget([] {
    ProblemOptions options = SomeOptions(1100, 5);
    options.mask = true;
    for (const float sink : {-kInf, 0.5f}) {
      options.sink_logit = sink;
      Problem problem(options, 38);
      problem.rows[0].row.key_end = 0;
      problem.rows[1].row.begin = problem.rows[1].row.end = 40;
      std::fill(problem.rows[2].mask.begin(), problem.rows[2].mask.end(), 0);
      const std::vector<RowResult> results = ComputeAll(problem);
      for (size_t r = 0; r < 3; ++r) EXPECT_TRUE(IsEmptyRow(results[r])) << "row " << r;
      for (size_t r = 3; r < 5; ++r) EXPECT_FALSE(IsEmptyRow(results[r])) << "row " << r;
    }
  });
}

TEST(AttentionSpecial, RowWhoseScoresAreAllMinusInfinityIsZero) {
  ProblemOptions options = SomeOptions(1100, 2);
  options.bias = true;
  Problem problem(options, 39);
  std::fill(problem.rows[0].bias.begin(), problem.rows[0].bias.end(), -kInf);
  const std::vector<RowResult> results = ComputeAll(problem);
  EXPECT_TRUE(IsEmptyRow(results[0]));
  EXPECT_FALSE(IsEmptyRow(results[1]));
}

TEST(AttentionSpecial, NanAmongMinusInfinityStaysNan) {
  for (const size_t key : {size_t{5}, size_t{1050}}) {
    ProblemOptions options = SomeOptions(1100, 1);
    options.bias = true;
    Problem problem(options, 40);
    std::vector<float>& bias = problem.rows[0].bias;
    std::fill(bias.begin(), bias.end(), -kInf);
    bias[key] = kNan;
    EXPECT_TRUE(AllNan(ComputeAll(problem)[0].output));
    problem.options.sink_logit = 1.0f;
    EXPECT_TRUE(AllNan(ComputeAll(problem)[0].output));
  }
}

TEST(AttentionSpecial, DroppedValueIsNotTaken) {
  ProblemOptions options = SomeOptions(100, 4);
  options.keep = true;
  Problem problem(options, 41);
  for (ProblemRow& row : problem.rows) row.keep[0] &= ~uint64_t{2};
  const std::vector<RowResult> clean = ComputeAll(problem);
  problem.cache.SetValue(1, 0, kNan);
  const std::vector<RowResult> poisoned = ComputeAll(problem);
  for (size_t r = 0; r < clean.size(); ++r) EXPECT_TRUE(SameBits(clean[r], poisoned[r]));
}

TEST(AttentionSpecial, MergingAnEmptyPartialChangesNoBit) {
  const int64_t d_v = 20;
  const size_t floats = static_cast<size_t>(PartialFloats(d_v));
  const Problem problem(SomeOptions(64, 1), 42);
  const AttentionParams params = problem.params();
  const std::vector<AttentionRow> rows = problem.Rows();
  AlignedBuffer<float> full(floats);
  AlignedBuffer<float> empty(floats);
  AttendRows(params, rows, 0, {problem.cache.block(0)}, full.data());
  AttendRows(params, rows, 16, {}, empty.data());
  full.data()[floats - 1] = -0.0f;

  const std::vector<float> before(full.data(), full.data() + floats);
  MergePartial(d_v, empty.data(), full.data());
  EXPECT_EQ(std::memcmp(full.data(), before.data(), floats * sizeof(float)), 0);
  MergePartial(d_v, before.data(), empty.data());
  EXPECT_EQ(std::memcmp(empty.data(), before.data(), floats * sizeof(float)), 0);
}

TEST(AttentionSpecial, MaximumIgnoresNanWhereverItIs) {
  ProblemOptions options = SomeOptions(64, 1);
  options.bias = true;
  options.scale = 0.0f;
  for (size_t nan_key = 0; nan_key < 64; ++nan_key) {
    for (const size_t best_key : {size_t{0}, size_t{17}, size_t{63}}) {
      if (nan_key == best_key) continue;
      Problem problem(options, 44);
      std::vector<float>& bias = problem.rows[0].bias;
      bias[nan_key] = kNan;
      bias[best_key] = 50.0f;
      ForEachTarget([&] {
        const AttentionParams params = problem.params();
        AlignedBuffer<float> partial(static_cast<size_t>(PartialFloats(20)));
        AttendRows(params, problem.Rows(), 0, {problem.cache.block(0)}, partial.data());
        EXPECT_EQ(partial.data()[kPartialMax], 50.0f) << nan_key << " " << best_key;
      });
    }
  }
}

// Weighted, the least negative number becomes -0, which a hidden key may or may not turn into +0.
TEST(AttentionSpecial, ZerosArePositiveOnEveryPath) {
  ProblemOptions options = SomeOptions(100, 5);
  options.mask = true;
  Problem problem(options, 45);
  for (int64_t token = 0; token < 100; ++token) {
    for (int64_t i = 0; i < 20; ++i) {
      problem.cache.SetValue(token, i, -std::numeric_limits<float>::denorm_min());
    }
  }
  for (const bool selecting : {false, true}) {
    problem.cache.claim_nonfinite = selecting;
    ForEachTarget([&] {
      for (const RowResult& result : ComputeAll(problem)) {
        EXPECT_TRUE(std::all_of(result.output.begin(), result.output.end(), IsPositiveZero));
      }
    });
  }
}

TEST(AttentionSpecial, MisalignedQueryGivesTheSameBits) {
  Problem problem(SomeOptions(100, 2), 43);
  const std::vector<RowResult> aligned = ComputeAll(problem);
  for (ProblemRow& row : problem.rows) row.query.insert(row.query.begin(), 0.0f);
  std::vector<AttentionRow> rows = problem.Rows();
  for (AttentionRow& row : rows) ++row.query;
  const AttentionParams params = problem.params();
  const size_t floats = static_cast<size_t>(PartialFloats(20));
  AlignedBuffer<float> partials(2 * floats);
  AttendRows(params, rows, 0, {problem.cache.block(0), problem.cache.block(1)}, partials.data());
  for (size_t r = 0; r < 2; ++r) {
    RowResult result{std::vector<float>(20), 0.0f};
    result.lse = FinishRow(20, partials.data() + r * floats, -kInf, 1.0f, result.output.data());
    EXPECT_TRUE(SameBits(result, aligned[r]));
  }
}

}  // namespace
}  // namespace attnserve::simd
