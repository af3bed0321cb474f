// What a step says about itself.
#ifndef ATTNSERVE_CLIENT_SRC_STEP_H_
#define ATTNSERVE_CLIENT_SRC_STEP_H_

#include <algorithm>
#include <cstdint>

#include "attnserve/v1/attention_service.pb.h"
#include "client/src/retry.h"

namespace attnserve::client::internal {

// Keys that a step appends.
inline int64_t NewTokens(const v1::DecodeRequest& step) {
  if (step.has_k()) return step.k().shape_size() == 4 ? step.k().shape(2) : 0;
  return step.x().shape_size() == 3 ? step.x().shape(1) : 0;
}

// A prompt may compute for longer than an attempt of a cheap call may last: each attempt would end
// the one before and none would come through.
inline Repeat RepeatOf(const v1::DecodeRequest& step) {
  constexpr int64_t kCheapTokens = 64;
  if (step.request_id().empty()) return Repeat::kNever;
  return NewTokens(step) > kCheapTokens ? Repeat::kSafe : Repeat::kSafeAndCheap;
}

// The least that all steps allow.
inline Repeat RepeatOf(const v1::DecodeBatchRequest& batch) {
  Repeat repeat = Repeat::kSafeAndCheap;
  for (const v1::DecodeRequest& step : batch.steps()) repeat = std::min(repeat, RepeatOf(step));
  return repeat;
}

}  // namespace attnserve::client::internal

#endif  // ATTNSERVE_CLIENT_SRC_STEP_H_
