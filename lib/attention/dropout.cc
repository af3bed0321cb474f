#include "lib/attention/dropout.h"

#include <array>

namespace attnserve {
namespace {

using Counter = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;

Counter PhiloxRound(const Counter& c, const Key& k) {
  const uint64_t a = uint64_t{0xD2511F53u} * c[0];
  const uint64_t b = uint64_t{0xCD9E8D57u} * c[2];
  return {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
}

Counter Philox(Counter counter, Key key) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key[0] += 0x9E3779B9u;
      key[1] += 0xBB67AE85u;
    }
    counter = PhiloxRound(counter, key);
  }
  return counter;
}

uint32_t Low(int64_t value) { return static_cast<uint32_t>(static_cast<uint64_t>(value)); }
uint32_t High(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

}  // namespace

bool DropsWeight(const DropoutOptions& dropout, int64_t stream, int64_t head, int64_t query,
                 int64_t key) {
  // The stream is mixed into the seed by one block of its own.
  const Counter mixed = Philox({Low(stream), High(static_cast<uint64_t>(stream)), 0, 0},
                               {static_cast<uint32_t>(dropout.seed), High(dropout.seed)});
  const Counter random = Philox({Low(key), Low(query), Low(head), 0}, {mixed[0], mixed[1]});
  return static_cast<double>(random[0]) < static_cast<double>(dropout.p) * 4294967296.0;
}

}  // namespace attnserve
