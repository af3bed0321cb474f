// Which attention weights are dropped.
#ifndef ATTNSERVE_LIB_ATTENTION_DROPOUT_H_
#define ATTNSERVE_LIB_ATTENTION_DROPOUT_H_

#include <cstdint>

#include "lib/attention/sequence.h"

namespace attnserve {

// Whether the weight of (head, query, key) is dropped, with probability dropout.p. Depends on
// nothing but its arguments: a counter-based generator (Philox 4x32-10; Salmon et al. 2011,
// "Parallel random numbers: as easy as 1, 2, 3") with the key (seed, stream) and the counter (key,
// query, head).
bool DropsWeight(const DropoutOptions& dropout, int64_t stream, int64_t head, int64_t query,
                 int64_t key);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_DROPOUT_H_
