// Tells whether two steps with one request_id are the same step.
#ifndef ATTNSERVE_LIB_ENGINE_PAYLOAD_HASH_H_
#define ATTNSERVE_LIB_ENGINE_PAYLOAD_HASH_H_

#include <cstdint>

#include "lib/engine/call.h"

namespace attnserve {

// Hash of everything a step computes with: layer, tensors, stages; not of expected_position.
// Differs between runs of the process.
uint64_t PayloadHash(const DecodeCall& call);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_PAYLOAD_HASH_H_
