// Limits that follow from others.
#ifndef ATTNSERVE_SERVER_LIMITS_H_
#define ATTNSERVE_SERVER_LIMITS_H_

#include <cstdint>

#include "lib/engine/engine.h"

namespace attnserve {

// The engine's limits such that every reply fits into a message of `max_message_bytes`: tensors get
// all of it but a 64th and 4 KiB for everything around them, stages at most a quarter (and 16 MiB).
// A reply that is too large is then refused before the work, with RESPONSE_TOO_LARGE, and not lost
// after it.
EngineLimits LimitsForMessages(int64_t max_message_bytes);

// At most so many bytes of a step's result in a DecodeBatch are not tensors: shapes and positions,
// or an error.
inline constexpr int64_t kStepOverheadBytes = 1536;

// Most steps of a DecodeBatch: 1024, fewer where their results alone would not fit a message.
int MaxBatchSteps(const EngineLimits& limits);

// Bytes that the tensors of all replies of one DecodeBatch of `steps` steps may have together.
int64_t BatchReplyBudget(const EngineLimits& limits, int steps);

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_LIMITS_H_
