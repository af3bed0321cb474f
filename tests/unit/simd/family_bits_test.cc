// The promise of KernelFamily(): machines of one family, x86 or not, compute the same bits. Whoever
// changes a kernel's order of operations on purpose takes the new digests from the failures.
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/simd/vector_ops.h"
#include "tests/unit/simd/attention_problem.h"
#include "tests/unit/simd/targets_test_util.h"

namespace attnserve::simd {
namespace {

// Below 2, all 24 bits used; std::normal_distribution may differ between machines.
float RandomFloat(std::mt19937& random) {
  return static_cast<float>(static_cast<int32_t>(random() >> 8) - (1 << 23)) * 0x1p-22f;
}

std::vector<float> RandomFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = RandomFloat(random);
  return values;
}

// FNV-1a of the bytes.
uint64_t Digest(const std::vector<float>& values) {
  uint64_t digest = 0xcbf29ce484222325u;
  for (const float value : values) {
    uint8_t bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    for (const uint8_t byte : bytes) digest = (digest ^ byte) * 0x100000001b3u;
  }
  return digest;
}

struct FamilyDigests {
  uint64_t fma;
  uint64_t mul_add;
};

template <class Compute>
void ExpectDigests(FamilyDigests expected, const Compute& compute) {
  ForEachTarget([&] {
    const std::string family = KernelFamily();
    const uint64_t digest = Digest(compute());
    EXPECT_EQ(digest, family == "fma" ? expected.fma : expected.mul_add)
        << family << ": 0x" << std::hex << digest;
  });
}

TEST(FamilyBits, OfExp) {
  std::vector<float> x = RandomFloats(10000, 1);
  for (float& value : x) value = -20.0f * (value + 2.0f);
  ExpectDigests({0xbacd44f48ad90f1c, 0xee366104419aabf8}, [x] {
    std::vector<float> y(x.size());
    Exp(x.data(), static_cast<int64_t>(x.size()), y.data());
    return y;
  });
}

TEST(FamilyBits, OfSoftcap) {
  ExpectDigests({0x34e62d111dfda5d7, 0x3e2f36dd024f73cc}, [] {
    std::vector<float> scores = RandomFloats(10000, 2);
    SoftcapScores(0.7f, static_cast<int64_t>(scores.size()), scores.data());
    return scores;
  });
}

TEST(FamilyBits, OfRotateAndNormalize) {
  ExpectDigests({0x306f889cf48214a6, 0x97e442bfd893de6e}, [] {
    const std::vector<float> cosine = RandomFloats(65, 3);
    const std::vector<float> sine = RandomFloats(65, 4);
    std::vector<float> head = RandomFloats(130, 5);
    Rotate(head.data(), 130, false, cosine.data(), sine.data());
    Rotate(head.data(), 130, true, cosine.data(), sine.data());
    Normalize(head.data(), 130, true, 1e-5f, nullptr, nullptr, head.data());
    return head;
  });
}

// Two stretches, every feature that moves a score.
Problem AttentionProblem(DType dtype) {
  ProblemOptions options;
  options.d_k = 67;
  options.d_v = 33;
  options.tokens = 1100;
  options.rows = 8;
  options.dtype = dtype;
  options.softcap = 5.0f;
  options.causal = true;
  options.bias = true;
  options.alibi = true;
  options.sink_logit = 0.75f;
  Problem problem(options, 6);
  std::mt19937 random(7);
  for (int64_t token = 0; token < options.tokens; ++token) {
    for (int64_t i = 0; i < options.d_k; ++i) problem.cache.SetKey(token, i, RandomFloat(random));
    for (int64_t i = 0; i < options.d_v; ++i) problem.cache.SetValue(token, i, RandomFloat(random));
  }
  for (size_t r = 0; r < problem.rows.size(); ++r) {
    ProblemRow& row = problem.rows[r];
    for (float& value : row.query) value = RandomFloat(random);
    for (float& value : row.bias) value = RandomFloat(random);
    row.row.alibi_slope = 0x1.8p-6f * static_cast<float>(r + 1);
  }
  return problem;
}

TEST(FamilyBits, OfAttention) {
  const std::map<DType, FamilyDigests> expected = {
      {DType::kF32, {0xfd8b5f82295b3b32, 0x9f59df6f8e8f648d}},
      {DType::kF16, {0x0053f565a947b229, 0xdd3879b9ed6862fa}},
      {DType::kBF16, {0xb13afe22c8d9df67, 0x9ec0fb64f41762fe}},
      {DType::kI8, {0x5e9bb4ebcbe173a9, 0x30945bc3873e58ba}}};
  for (const auto& [dtype, digests] : expected) {
    const Problem problem = AttentionProblem(dtype);
    ExpectDigests(digests, [&problem] {
      std::vector<float> values;
      for (const RowResult& row : ComputeAll(problem)) {
        values.insert(values.end(), row.output.begin(), row.output.end());
        values.push_back(row.lse);
      }
      return values;
    });
  }
}

}  // namespace
}  // namespace attnserve::simd
