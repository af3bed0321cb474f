// Which attention weights are dropped.
#ifndef ATTNSERVE_LIB_ATTENTION_DROPOUT_H_
#define ATTNSERVE_LIB_ATTENTION_DROPOUT_H_

#include <array>
#include <cstdint>

#include "lib/attention/sequence.h"

namespace attnserve {

// Philox 4x32-10, a counter-based generator: four random words for each counter and key (Salmon et
// al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Whether the weight of (head, query, key) is dropped, with probability dropout.p. Depends on
// nothing but its arguments: word key % 4 of the counter (key / 4, query, head), under a Philox key
// made from seed and stream. Heads, queries and keys / 4 below 2^32 are told apart.
bool DropsWeight(const DropoutOptions& dropout, int64_t stream, int64_t head, int64_t query,
                 int64_t key);

// DropsWeight for the 64 keys from `first_key` (a multiple of 4) on: bit i is 0 where the weight of
// key first_key + i is dropped.
uint64_t KeptWeights(const DropoutOptions& dropout, int64_t stream, int64_t head, int64_t query,
                     int64_t first_key);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_DROPOUT_H_
