// Whether steps wait for each other.
#ifndef ATTNSERVE_LIB_ENGINE_STEP_ROUNDS_H_
#define ATTNSERVE_LIB_ENGINE_STEP_ROUNDS_H_

#include <chrono>
#include <cstdint>

namespace attnserve {

// Steps that are at their turn at once make a round and run side by side, so that layers read their
// weights once for all. Callers that answer each reply with a step come back when the next round
// has just begun: two halves would take turns, each at half the speed. So a round waits a moment
// for the sessions of the last two. (The steps of one DecodeBatch come one after the other, too.)
//
// Not thread-safe. Times are passed in.
class StepRounds {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Until when a round waits that has `steps` steps by now, the oldest come at `arrival`; `now`:
  // not at all. Over when expected_sessions() have come.
  Time WaitsUntil(Time now, Time arrival, int64_t steps);
  // Sessions that have had a step in the last two rounds.
  int64_t expected_sessions() const { return sessions_ + other_sessions_; }

  void Begin(Time now);
  // A session has a step in this round. `*last_round`, at first -1, is kept with the session.
  void Join(int64_t* last_round);
  // Steps of this round have run side by side.
  void Share() { shared_ = true; }
  void End(Time now);

 private:
  int64_t number_ = 0;          // of the last round
  int64_t sessions_ = 0;        // in it
  int64_t other_sessions_ = 0;  // in the one before, but not in it
  bool waited_ = false;
  bool shared_ = false;
  int64_t waits_skipped_ = 0;  // next rounds that do not wait
  Time begin_, end_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_STEP_ROUNDS_H_
