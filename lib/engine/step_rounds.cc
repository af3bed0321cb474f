#include "lib/engine/step_rounds.h"

#include <algorithm>

namespace attnserve {
namespace {

// A round waits for at most this part of the time that the last one took, and at most kLongestWait;
// less than kShortestWait is not worth it.
constexpr int64_t kWaitPart = 4;
constexpr std::chrono::microseconds kShortestWait{200};
constexpr std::chrono::microseconds kLongestWait{1000};
// Rounds that do not wait after one that did so in vain.
constexpr int64_t kSkippedAfterVain = 16;

}  // namespace

StepRounds::Time StepRounds::WaitsUntil(Time now, Time arrival, int64_t steps) {
  const std::chrono::nanoseconds took = end_ - begin_;
  const auto wait = std::min<std::chrono::nanoseconds>(took / kWaitPart, kLongestWait);
  waited_ = false;
  // Who takes longer to come back than a round takes loses little.
  if (wait < kShortestWait || arrival - end_ > took) return now;
  if (waits_skipped_ > 0) {
    --waits_skipped_;
    return now;
  }
  waited_ = steps < expected_sessions();
  return waited_ ? now + wait : now;
}

void StepRounds::Begin(Time now) {
  ++number_;
  begin_ = now;
  other_sessions_ = sessions_;
  sessions_ = 0;
  shared_ = false;
}

void StepRounds::Join(int64_t* last_round) {
  if (*last_round == number_) return;
  if (*last_round == number_ - 1) --other_sessions_;
  *last_round = number_;
  ++sessions_;
}

void StepRounds::End(Time now) {
  end_ = now;
  if (waited_ && !shared_) waits_skipped_ = kSkippedAfterVain;
}

}  // namespace attnserve
