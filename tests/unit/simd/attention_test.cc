// The attention kernels against their float64 twin.
#include "lib/simd/attention.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"
#include "tests/unit/simd/attention_problem.h"
#include "tests/unit/simd/targets_test_util.h"

namespace attnserve::simd {
namespace {

constexpr int64_t kHeadSizes[] = {1, 3, 8, 15, 16, 17, 64, 80, 128, 129};
constexpr DType kCacheTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8};

float DefaultScale(int64_t d_k) { return 1.0f / std::sqrt(static_cast<float>(d_k)); }

void ExpectExact(const ProblemOptions& options, uint32_t seed) {
  const Problem problem(options, seed);
  ExpectMatchesExact(problem, ComputeAll(problem));
}

TEST(Attention, EveryPairOfHeadSizesMatches) {
  for (const int64_t d_k : kHeadSizes) {
    for (const int64_t d_v : kHeadSizes) {
      SCOPED_TRACE(testing::Message() << "d_k " << d_k << " d_v " << d_v);
      ProblemOptions options;
      options.d_k = d_k;
      options.d_v = d_v;
      options.tokens = 70;
      options.rows = 3;
      options.scale = DefaultScale(d_k);
      ExpectExact(options, static_cast<uint32_t>(d_k * 1000 + d_v));
    }
  }
}

TEST(Attention, EveryTargetAndCacheTypeMatches) {
  ForEachTarget([] {
    for (const DType dtype : kCacheTypes) {
      for (const int64_t size : kHeadSizes) {
        ProblemOptions options;
        options.d_k = size;
        options.d_v = size;
        options.tokens = 131;
        options.rows = 7;
        options.dtype = dtype;
        options.scale = DefaultScale(size);
        options.causal = true;
        ExpectExact(options, static_cast<uint32_t>(size));
      }
    }
  });
}

TEST(Attention, KeyCountsAroundBlocksAndStretchesMatch) {
  for (const int64_t tokens : {1, 15, 16, 17, 63, 64, 65, 127, 1000, 1024, 1025, 2500}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens");
    ProblemOptions options;
    options.d_k = 24;
    options.d_v = 40;
    options.tokens = tokens;
    options.rows = 5;
    options.scale = DefaultScale(24);
    ExpectExact(options, 1);
    options.causal = true;
    ExpectExact(options, 2);
  }
}

TEST(Attention, EveryRowCountMatches) {
  for (int64_t rows = 1; rows <= 13; ++rows) {
    SCOPED_TRACE(testing::Message() << rows << " rows");
    ProblemOptions options;
    options.tokens = 150;
    options.rows = rows;
    options.causal = true;
    options.mask = true;
    ExpectExact(options, static_cast<uint32_t>(rows));
  }
}

// Every mixture of masks, biases, softcap, dropout and scales, zero and negative ones too.
TEST(Attention, RandomFeaturesMatch) {
  std::mt19937 random(7);
  const auto sometimes = [&random] { return random() % 3 == 0; };
  for (uint32_t trial = 0; trial < 150; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    ProblemOptions options;
    options.d_k = kHeadSizes[random() % 10];
    options.d_v = kHeadSizes[random() % 10];
    options.tokens = 1 + static_cast<int64_t>(random() % (trial % 10 == 0 ? 2500 : 300));
    options.rows = 1 + static_cast<int64_t>(random() % 13);
    options.dtype = kCacheTypes[random() % 3];
    const float scales[] = {DefaultScale(options.d_k), 1.0f, 0.0f, -0.5f, 3.0f};
    options.scale = scales[random() % 5];
    options.softcap = sometimes() ? 5.0f : 0.0f;
    options.causal = sometimes();
    options.window_and_sinks = sometimes();
    options.mask = sometimes();
    options.bias = sometimes();
    options.alibi = sometimes();
    options.key_positions = sometimes();
    options.keep = sometimes();
    if (sometimes()) options.sink_logit = 0.75f;
    ExpectExact(options, trial);
  }
}

TEST(Attention, LargeScoresMoveTheMaximumOften) {
  ProblemOptions options;
  options.d_k = 64;
  options.tokens = 2500;
  options.rows = 6;
  options.scale = 1.0f;
  ExpectExact(options, 3);
}

TEST(Attention, RowSeesBlocksAgreesWithDefinition) {
  std::mt19937 random(11);
  ProblemOptions options;
  options.tokens = 700;
  options.rows = 40;
  options.causal = true;
  options.window_and_sinks = true;
  for (const bool mask : {false, true}) {
    options.mask = mask;
    Problem problem(options, 5);
    for (ProblemRow& row : problem.rows) {
      if (mask) {
        for (uint64_t& word : row.mask) word = random() % 2 == 0 ? 0 : word & (word << 7);
      }
    }
    const std::vector<AttentionRow> rows = problem.Rows();
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int64_t first = 0; first < 13; ++first) {
        for (const int64_t count : {1, 2, 16}) {
          bool sees = false;
          for (int64_t key = first * 64; key < std::min<int64_t>((first + count) * 64, 704);
               ++key) {
            sees = sees || Sees(problem.rows[r], key);
          }
          const int64_t blocks = std::min(count, problem.cache.block_count() - first);
          if (blocks < 1) continue;
          EXPECT_EQ(RowSeesBlocks(rows[r], first, blocks), sees) << r << " " << first;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnserve::simd
