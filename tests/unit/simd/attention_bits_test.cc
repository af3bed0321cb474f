// The promise that a row has the same bits whichever way it is computed.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "lib/simd/attention.h"
#include "lib/simd/vector_ops.h"
#include "tests/unit/simd/attention_problem.h"
#include "tests/unit/simd/targets_test_util.h"

namespace attnserve::simd {
namespace {

constexpr DType kCacheTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8};

ProblemOptions RandomOptions(std::mt19937& random, int64_t most_tokens) {
  const auto sometimes = [&random] { return random() % 3 == 0; };
  ProblemOptions options;
  options.d_k = 1 + static_cast<int64_t>(random() % 40);
  options.d_v = 1 + static_cast<int64_t>(random() % 40);
  options.tokens = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(most_tokens));
  options.rows = 1 + static_cast<int64_t>(random() % 13);
  options.dtype = kCacheTypes[random() % 3];
  options.scale = random() % 4 == 0 ? -1.0f : 0.5f;
  options.softcap = sometimes() ? 2.0f : 0.0f;
  options.causal = !sometimes();
  options.window_and_sinks = sometimes();
  options.mask = sometimes();
  options.bias = sometimes();
  options.alibi = sometimes();
  options.keep = sometimes();
  return options;
}

// A value that is not finite, sometimes: the kernels then take another path.
void PlantNonFinite(Problem& problem, std::mt19937& random) {
  const int64_t token = static_cast<int64_t>(random()) % problem.options.tokens;
  problem.cache.SetValue(token, 0, random() % 2 == 0 ? NAN : INFINITY);
}

void ExpectSameBits(const std::vector<RowResult>& a, const std::vector<RowResult>& b,
                    const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t r = 0; r < a.size(); ++r) {
    ASSERT_TRUE(SameBits(a[r], b[r])) << what << ", row " << r;
  }
}

TEST(AttentionBits, RowsAloneInGroupsAndShuffledAgree) {
  std::mt19937 random(21);
  for (uint32_t trial = 0; trial < 80; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    Problem problem(RandomOptions(random, 2500), trial);
    if (trial % 4 == 0) PlantNonFinite(problem, random);
    const std::vector<RowResult> together = ComputeAll(problem);
    std::vector<size_t> order(problem.rows.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    const std::vector<RowResult> shuffled = Compute(problem, order);
    for (size_t i = 0; i < order.size(); ++i) {
      ASSERT_TRUE(SameBits(shuffled[i], together[order[i]])) << "shuffled, row " << order[i];
      ASSERT_TRUE(SameBits(Compute(problem, {order[i]})[0], together[order[i]]))
          << "alone, row " << order[i];
    }
  }
}

TEST(AttentionBits, StretchesInAnyOrderAndSkippedOnesAgree) {
  std::mt19937 random(22);
  for (uint32_t trial = 0; trial < 20; ++trial) {
    ProblemOptions options = RandomOptions(random, 1);
    options.tokens = 2049 + static_cast<int64_t>(random() % 3000);
    const Problem problem(options, trial);
    std::vector<size_t> rows(problem.rows.size());
    std::iota(rows.begin(), rows.end(), size_t{0});
    std::vector<int64_t> stretches((static_cast<size_t>(options.tokens) + 1023) / 1024);
    std::iota(stretches.begin(), stretches.end(), 0);
    std::shuffle(stretches.begin(), stretches.end(), random);
    const std::vector<RowResult> ascending = ComputeAll(problem);
    ExpectSameBits(Compute(problem, rows, stretches), ascending, "shuffled stretches");
    ExpectSameBits(Compute(problem, rows, {}, true), ascending, "skipped stretches");
  }
}

// Decode: what a row gives does not depend on tokens after it, not even on whether they exist.
TEST(AttentionBits, TokenByTokenAgreesWithWholeSequence) {
  std::mt19937 random(23);
  for (uint32_t trial = 0; trial < 15; ++trial) {
    ProblemOptions options = RandomOptions(random, 1);
    options.tokens = 60 + static_cast<int64_t>(random() % 1100);
    options.rows = 13;
    options.causal = true;
    options.window_and_sinks = false;
    const Problem problem(options, trial);
    const std::vector<RowResult> together = ComputeAll(problem);
    for (size_t r = 0; r < problem.rows.size(); ++r) {
      const Problem earlier = Truncated(problem, problem.rows[r].row.end);
      ASSERT_TRUE(SameBits(Compute(earlier, {r})[0], together[r])) << "row " << r;
    }
  }
}

TEST(AttentionBits, SelectingPathAgreesWithFastPath) {
  std::mt19937 random(24);
  for (uint32_t trial = 0; trial < 40; ++trial) {
    Problem problem(RandomOptions(random, 400), trial);
    const std::vector<RowResult> fast = ComputeAll(problem);
    problem.cache.claim_nonfinite = true;
    ExpectSameBits(ComputeAll(problem), fast, "selecting");
  }
}

TEST(AttentionBits, TargetsOfOneFamilyAgree) {
  std::mt19937 random(25);
  for (uint32_t trial = 0; trial < 30; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    Problem problem(RandomOptions(random, 1500), trial);
    if (trial % 4 == 0) PlantNonFinite(problem, random);
    std::map<std::string, std::vector<RowResult>> of_family;
    ForEachTarget([&] {
      const std::vector<RowResult> results = ComputeAll(problem);
      const auto [first, inserted] = of_family.emplace(KernelFamily(), results);
      if (!inserted) ExpectSameBits(results, first->second, KernelFamily());
    });
  }
}

// The recipe of a score: one fused step per element, ascending, from 0, then the key's scale in an
// I8 cache, then the scale.
TEST(AttentionBits, BlockScoresFollowTheRecipe) {
  for (const DType dtype : kCacheTypes) {
    for (const int64_t d_k : {1, 3, 16, 17, 129}) {
      ProblemOptions options;
      options.d_k = d_k;
      options.dtype = dtype;
      options.scale = 0.3f;
      const Problem problem(options, 6);
      ForEachTarget([&] {
        float scores[kTokensPerBlock];
        const std::vector<float>& query = problem.rows[0].query;
        BlockScores(problem.params(), query.data(), problem.cache.block(0), scores);
        for (int64_t j = 0; j < kTokensPerBlock; ++j) {
          const float key_scale = problem.cache.key_scale(j);
          float sum = 0.0f;
          for (int64_t i = 0; i < d_k; ++i) {
            const float q = query[static_cast<size_t>(i)];
            const float k =
                static_cast<float>(problem.cache.key(j, i) / static_cast<double>(key_scale));
            sum = RoundingsPerStep() == 1.0 ? std::fma(q, k, sum) : q * k + sum;
          }
          ASSERT_EQ(scores[j], sum * key_scale * options.scale) << "key " << j;
        }
      });
    }
  }
}

// A caller that shows scores sees what the kernel used: feeding them back as biases of a row with
// scale 0 gives the same result.
TEST(AttentionBits, BlockScoresAndSoftcapAreWhatAttendStretchUses) {
  for (const float softcap : {0.0f, 1.5f}) {
    ProblemOptions options;
    options.tokens = 64;
    options.softcap = softcap;
    const Problem problem(options, 8);
    Problem fed(options, 8);
    fed.options.scale = 0.0f;
    fed.options.softcap = 0.0f;
    std::vector<float>& bias = fed.rows[0].bias;
    bias.resize(64);
    BlockScores(problem.params(), problem.rows[0].query.data(), problem.cache.block(0),
                bias.data());
    if (softcap > 0.0f) SoftcapScores(softcap, 64, bias.data());
    EXPECT_TRUE(SameBits(ComputeAll(problem)[0], ComputeAll(fed)[0]));
  }
}

}  // namespace
}  // namespace attnserve::simd
