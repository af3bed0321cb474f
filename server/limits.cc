#include "server/limits.h"

#include <algorithm>

namespace attnserve {

EngineLimits LimitsForMessages(int64_t max_message_bytes) {
  EngineLimits limits;
  limits.max_stage_bytes = std::min(limits.max_stage_bytes, max_message_bytes / 4);
  limits.max_reply_bytes = max_message_bytes - max_message_bytes / 64 - 4096;
  return limits;
}

int64_t BatchReplyBudget(const EngineLimits& limits, int steps) {
  return std::max<int64_t>(0, limits.max_reply_bytes - kStepOverheadBytes * steps);
}

int MaxBatchSteps(const EngineLimits& limits) {
  constexpr int64_t kMost = 1024;
  return static_cast<int>(std::min(kMost, limits.max_reply_bytes / kStepOverheadBytes));
}

}  // namespace attnserve
