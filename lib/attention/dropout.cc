#include "lib/attention/dropout.h"

namespace attnserve {
namespace {

using Words = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// Multipliers and key increments of the paper's section 4.3.
constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kIncrement0 = 0x9E3779B9u, kIncrement1 = 0xBB67AE85u;

constexpr uint32_t Low(uint64_t value) { return static_cast<uint32_t>(value); }
constexpr uint32_t High(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

// The stream is mixed into the seed by one block of its own.
PhiloxKey KeyOf(const DropoutOptions& dropout, int64_t stream) {
  const uint64_t bits = static_cast<uint64_t>(stream);
  const Words mixed =
      Philox({Low(bits), High(bits), 0, 0}, {Low(dropout.seed), High(dropout.seed)});
  return {mixed[0], mixed[1]};
}

Words RandomWords(const PhiloxKey& key, int64_t head, int64_t query, int64_t four_keys) {
  return Philox({Low(static_cast<uint64_t>(four_keys)), Low(static_cast<uint64_t>(query)),
                 Low(static_cast<uint64_t>(head)), 0},
                key);
}

bool IsBelow(uint32_t random, float p) {
  return static_cast<double>(random) < static_cast<double>(p) * 0x1p32;
}

}  // namespace

std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{kMultiplier0} * counter[0];
    const uint64_t b = uint64_t{kMultiplier1} * counter[2];
    counter = {High(b) ^ counter[1] ^ key[0], Low(b), High(a) ^ counter[3] ^ key[1], Low(a)};
    key[0] += kIncrement0;
    key[1] += kIncrement1;
  }
  return counter;
}

bool DropsWeight(const DropoutOptions& dropout, int64_t stream, int64_t head, int64_t query,
                 int64_t key) {
  const Words words = RandomWords(KeyOf(dropout, stream), head, query, key / 4);
  return IsBelow(words[static_cast<size_t>(key % 4)], dropout.p);
}

uint64_t KeptWeights(const DropoutOptions& dropout, int64_t stream, int64_t head, int64_t query,
                     int64_t first_key) {
  const PhiloxKey philox_key = KeyOf(dropout, stream);
  uint64_t kept = 0;
  for (int64_t i = 0; i < 64; i += 4) {
    const Words words = RandomWords(philox_key, head, query, (first_key + i) / 4);
    for (size_t word = 0; word < words.size(); ++word) {
      if (!IsBelow(words[word], dropout.p)) kept |= uint64_t{1} << (static_cast<size_t>(i) + word);
    }
  }
  return kept;
}

}  // namespace attnserve
