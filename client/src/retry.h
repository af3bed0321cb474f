// Repeats attempts of a call.
#ifndef ATTNSERVE_CLIENT_SRC_RETRY_H_
#define ATTNSERVE_CLIENT_SRC_RETRY_H_

#include <chrono>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "attnserve/client/options.h"

namespace attnserve::client::internal {

// gRPC deadlines are points on the system clock.
using TimePoint = std::chrono::system_clock::time_point;

// Whether a call may be sent again after an attempt whose fate is unknown.
enum class Repeat {
  kNever,        // it may have been applied: only if the server said that it was not
  kSafe,         // applied twice is as good as once; an attempt may take the whole deadline
  kSafeAndCheap  // the same; each attempt takes at most RetryPolicy.attempt_timeout
};

// Runs `attempt`, which takes its own deadline, until it succeeds, fails for good or `deadline`
// comes. Returns the last outcome, with the number of attempts in the message if there were more.
absl::Status RunWithRetries(const RetryPolicy& policy, TimePoint deadline, Repeat repeat,
                            absl::FunctionRef<absl::Status(TimePoint)> attempt);

}  // namespace attnserve::client::internal

#endif  // ATTNSERVE_CLIENT_SRC_RETRY_H_
