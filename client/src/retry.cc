#include "client/src/retry.h"

#include <algorithm>
#include <optional>
#include <random>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "attnserve/client/status.h"

namespace attnserve::client::internal {
namespace {

using std::chrono::milliseconds;

constexpr double kJitter = 0.2;  // of a wait, either way

milliseconds WithJitter(milliseconds wait) {
  thread_local std::minstd_rand random(std::random_device{}());
  std::uniform_real_distribution<double> factor(1.0 - kJitter, 1.0 + kJitter);
  return milliseconds(static_cast<int64_t>(static_cast<double>(wait.count()) * factor(random)));
}

bool MayRepeat(const absl::Status& status, Repeat repeat) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return repeat != Repeat::kNever || GetErrorInfo(status).has_value();
    case absl::StatusCode::kDeadlineExceeded:
      return repeat != Repeat::kNever;
    case absl::StatusCode::kResourceExhausted:
      return GetRetryDelay(status).has_value();
    default:
      return false;
  }
}

absl::Status WithAttempts(const absl::Status& status, int attempts) {
  if (status.ok() || attempts == 1) return status;
  absl::Status result(status.code(),
                      absl::StrCat(status.message(), " (after ", attempts, " attempts)"));
  status.ForEachPayload([&result](absl::string_view type, const absl::Cord& payload) {
    result.SetPayload(type, payload);
  });
  return result;
}

}  // namespace

absl::Status RunWithRetries(const RetryPolicy& policy, TimePoint deadline, Repeat repeat,
                            absl::FunctionRef<absl::Status(TimePoint)> attempt,
                            const RetryClock& clock) {
  milliseconds backoff = policy.initial_backoff;
  for (int attempts = 1;; ++attempts) {
    TimePoint attempt_deadline = deadline;
    if (repeat == Repeat::kSafeAndCheap && policy.attempt_timeout.count() > 0) {
      attempt_deadline = std::min(deadline, clock.now() + policy.attempt_timeout);
    }
    const absl::Status status = attempt(attempt_deadline);
    if (status.ok() || attempts >= policy.max_attempts || !MayRepeat(status, repeat)) {
      return WithAttempts(status, attempts);
    }
    const milliseconds asked = GetRetryDelay(status).value_or(milliseconds(0));
    const milliseconds wait = std::max(WithJitter(backoff), asked);
    if (clock.now() + wait >= deadline) return WithAttempts(status, attempts);
    clock.sleep(wait);
    backoff = std::min(policy.max_backoff,
                       milliseconds(static_cast<int64_t>(static_cast<double>(backoff.count()) *
                                                         policy.multiplier)));
  }
}

}  // namespace attnserve::client::internal
