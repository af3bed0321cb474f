#include "lib/attention/dropout.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace attnserve {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers that Random123, the paper's own implementation, publishes for philox4x32-10.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(
      Philox({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
      (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(
      Philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
      (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

DropoutOptions Options(float p, uint64_t seed = 7) {
  DropoutOptions options;
  options.p = p;
  options.seed = seed;
  return options;
}

TEST(DropsWeight, WordsOfKeysAgreeWithSingleKeys) {
  for (const int64_t first : {0, 4, 64, 1000, 1024}) {
    const uint64_t kept = KeptWeights(Options(0.4f), 3, 5, 11, first);
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_EQ(((kept >> i) & 1) == 0, DropsWeight(Options(0.4f), 3, 5, 11, first + i));
    }
  }
}

TEST(DropsWeight, ExtremeProbabilities) {
  EXPECT_EQ(KeptWeights(Options(0.0f), 0, 0, 0, 0), ~uint64_t{0});
  EXPECT_EQ(KeptWeights(Options(1.0f), 0, 0, 0, 0), uint64_t{0});
}

// The share of dropped weights is within 5 standard deviations of p.
TEST(DropsWeight, DropsTheAskedShare) {
  constexpr int64_t kKeys = 1 << 16;
  for (const float p : {0.001f, 0.1f, 0.5f, 0.9f}) {
    int64_t dropped = 0;
    for (int64_t key = 0; key < kKeys; key += 64) {
      dropped += 64 - __builtin_popcountll(KeptWeights(Options(p), 0, 1, 2, key));
    }
    const double deviation = std::sqrt(static_cast<double>(kKeys) * p * (1.0 - p));
    EXPECT_NEAR(static_cast<double>(dropped), static_cast<double>(kKeys) * p, 5.0 * deviation) << p;
  }
}

// Changing any argument gives an unrelated pattern: half of the bits agree.
TEST(DropsWeight, EveryArgumentCounts) {
  struct Place {
    uint64_t seed;
    int64_t stream, head, query, key;
  };
  constexpr int64_t kFar = int64_t{1} << 32;
  const Place places[] = {
      {7, 0, 0, 0, 0},    {8, 0, 0, 0, 0},  {7 + (uint64_t{1} << 40), 0, 0, 0, 0},
      {7, 1, 0, 0, 0},    {7, -1, 0, 0, 0}, {7, kFar, 0, 0, 0},
      {7, 0, 1, 0, 0},    {7, 0, 0, 1, 0},  {7, 0, 1, 1, 0},
      {7, 0, 0, 0, 4096},
  };
  constexpr int64_t kWords = 64;
  std::vector<std::vector<uint64_t>> patterns;
  for (const Place& place : places) {
    patterns.emplace_back();
    for (int64_t i = 0; i < kWords; ++i) {
      patterns.back().push_back(KeptWeights(Options(0.5f, place.seed), place.stream, place.head,
                                            place.query, place.key + i * 64));
    }
  }
  const double bits = kWords * 64, deviation = std::sqrt(bits) / 2.0;
  for (size_t a = 0; a < patterns.size(); ++a) {
    for (size_t b = a + 1; b < patterns.size(); ++b) {
      int64_t equal = 0;
      for (size_t i = 0; i < kWords; ++i) {
        equal += 64 - __builtin_popcountll(patterns[a][i] ^ patterns[b][i]);
      }
      EXPECT_NEAR(static_cast<double>(equal), bits / 2.0, 5.0 * deviation) << a << " and " << b;
    }
  }
}

}  // namespace
}  // namespace attnserve
