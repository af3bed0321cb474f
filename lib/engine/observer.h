// What the engine reports while it works, for metrics.
#ifndef ATTNSERVE_LIB_ENGINE_OBSERVER_H_
#define ATTNSERVE_LIB_ENGINE_OBSERVER_H_

#include <chrono>
#include <cstdint>
#include <string_view>

#include "lib/session/tombstones.h"

namespace attnserve {

// What kind of work a call is.
enum class Phase { kDecode, kPrefill, kForward, kAttend };

// "decode", "prefill", "forward", "attend".
std::string_view PhaseName(Phase phase);

// Called from the engine's threads; must be quick and must not call the engine. The default does
// nothing.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  // A call left the queue.
  virtual void OnQueueWait(Phase, std::chrono::nanoseconds) {}
  // A batch of `calls` calls ran `rows` rows.
  virtual void OnBatch(Phase, int64_t /*calls*/, int64_t /*rows*/, std::chrono::nanoseconds) {}
  // Tokens of calls that succeeded.
  virtual void OnTokens(Phase, int64_t) {}
  virtual void OnMaskedRows(int64_t) {}
  virtual void OnNonFinite(int64_t) {}
  virtual void OnSessionCreated() {}
  virtual void OnSessionEnded(EndReason) {}
  // A call ended before its work was done because its caller gave up ("cancelled", "deadline").
  virtual void OnCancelled(std::string_view /*reason*/) {}
  // A call was refused; `reason` is that of the error catalogue.
  virtual void OnRejected(std::string_view /*reason*/) {}
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_OBSERVER_H_
