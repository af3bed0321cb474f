#include "server/limits.h"

#include <algorithm>

namespace attnserve {

EngineLimits LimitsForMessages(int64_t max_message_bytes) {
  EngineLimits limits;
  limits.max_stage_bytes = std::min(limits.max_stage_bytes, max_message_bytes / 4);
  limits.max_reply_bytes =
      max_message_bytes - limits.max_stage_bytes - max_message_bytes / 64 - 4096;
  return limits;
}

}  // namespace attnserve
