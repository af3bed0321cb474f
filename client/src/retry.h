// Repeats attempts of a call.
#ifndef ATTNSERVE_CLIENT_SRC_RETRY_H_
#define ATTNSERVE_CLIENT_SRC_RETRY_H_

#include <chrono>
#include <functional>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "attnserve/client/options.h"

namespace attnserve::client::internal {

// gRPC deadlines are points on the system clock.
using TimePoint = std::chrono::system_clock::time_point;

// The time attempts are made and waited for in.
struct RetryClock {
  std::function<TimePoint()> now = std::chrono::system_clock::now;
  std::function<void(std::chrono::milliseconds)> sleep = [](std::chrono::milliseconds wait) {
    std::this_thread::sleep_for(wait);
  };
};

// Whether a call may be sent again after an attempt whose fate is unknown.
enum class Repeat {
  kNever,        // it may have been applied: only if the server said that it was not
  kSafe,         // applied twice is as good as once; an attempt may take the whole deadline
  kSafeAndCheap  // the same; each attempt takes at most RetryPolicy.attempt_timeout
};

// Runs `attempt`, which takes its own deadline, until it succeeds, fails for good or `deadline`
// comes: no wait begins that would reach it. Returns the last outcome, with the number of attempts
// in the message if there were more.
absl::Status RunWithRetries(const RetryPolicy& policy, TimePoint deadline, Repeat repeat,
                            absl::FunctionRef<absl::Status(TimePoint)> attempt,
                            const RetryClock& clock = {});

}  // namespace attnserve::client::internal

#endif  // ATTNSERVE_CLIENT_SRC_RETRY_H_
