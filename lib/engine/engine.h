// Everything behind the RPCs: sessions, scheduling, computation.
#ifndef ATTNSERVE_LIB_ENGINE_ENGINE_H_
#define ATTNSERVE_LIB_ENGINE_ENGINE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/engine/call.h"
#include "lib/engine/observer.h"
#include "lib/session/session.h"
#include "lib/session/tombstones.h"

namespace attnserve {

struct EngineLimits {
  int64_t max_queued_calls = 4096;
  int64_t max_queued_bytes = int64_t{512} << 20;
  int64_t max_sessions = 10000;
  // Of the stages one reply may carry.
  int64_t max_stage_bytes = int64_t{16} << 20;
  // Of all tensors one reply may carry: stages, output, present keys and values.
  int64_t max_reply_bytes = int64_t{256} << 20;
  // B * T * S * H of one call: 2^34 scores are about a minute of one core.
  int64_t max_scores = int64_t{1} << 34;
  // Rows of one long call that run before another's turn.
  int64_t slice_rows = 256;
  // How long a decode step may wait for long calls that run, give or take one of their tasks (some
  // 2 ms). Long calls get as much time between two batches of steps.
  std::chrono::nanoseconds step_wait = std::chrono::milliseconds(2);
};

struct EngineOptions {
  int worker_count = 1;
  int64_t kv_budget_bytes = 0;
  std::chrono::milliseconds default_session_ttl{std::chrono::minutes(10)};
  EngineLimits limits;
  EngineObserver* observer = nullptr;  // outlives the engine; null: none
  // Time that sessions age by; tests replace it.
  std::function<std::chrono::steady_clock::time_point()> clock = &std::chrono::steady_clock::now;
};

struct CreateSessionOptions {
  std::string id;                      // empty: random
  std::shared_ptr<const Model> model;  // null: core attention
  std::vector<LayerSpec> core_layers;  // completed; used if model is null
  int64_t max_tokens = 0;              // 0: the model's, or none
  bool reserve = false;
  std::chrono::milliseconds ttl{0};  // 0: the default
  bool override_cache_dtype = false;
  DType cache_dtype = DType::kF32;
};

struct CreatedSession {
  SessionInfo info;
  int64_t bytes_per_token = 0;
  int64_t bytes_per_block = 0;
  int64_t reserved_bytes = 0;
};

struct SessionPage {
  std::vector<SessionInfo> sessions;
  std::string next_page_token;  // empty: the last page
  std::vector<Tombstone> ended;
};

// Memory by what holds it. Blocks, replies and charged-but-unused bytes count against the budget.
struct EngineStats {
  int64_t session_count = 0;
  int64_t queued_calls = 0;
  int64_t queued_bytes = 0;
  int64_t kv_budget_bytes = 0;
  int64_t kv_charged_bytes = 0;    // blocks + replies + promises
  int64_t kv_block_bytes = 0;      // blocks in use by sessions
  int64_t kv_slab_free_bytes = 0;  // held from the system beyond that
  int64_t scratch_bytes = 0;       // blocks of stateless calls in flight
};

// Runs calls on a scheduler thread and a pool of workers. Thread-safe.
//
// Order: calls of one session run in arrival order; others in any. Steps are batched across
// sessions where they go through the same layer. Long calls are cut into slices that take turns;
// steps pass them, inside a slice too. Cancellation is honoured between slices. A step is applied
// wholly or not at all.
//
// One lock guards queues and the session list. A decode step takes it twice, for a few pointer
// operations each time: shorter than any lock-free hand-off would be clear.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  // Fails what still waits with DRAINING, waits for what runs.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Each checks the call and either queues it or fails it; sink->Done is called exactly once, maybe
  // before Submit returns. Errors are those of attention_service.proto and session_service.proto.
  void Submit(ForwardCall* call);
  void Submit(AttendCall* call);
  void Submit(DecodeCall* call);
  void Submit(SessionCall* call);

  // BAD_OPTION, SESSION_EXISTS, SESSION_LIMIT, KV_BUDGET, DRAINING.
  absl::StatusOr<CreatedSession> CreateSession(const CreateSessionOptions& options);
  // SESSION_NOT_FOUND, SESSION_EXPIRED.
  absl::StatusOr<SessionInfo> GetSession(const std::string& id);
  // Living sessions in order of id after `page_token` (empty: from the first); with `show_ended`
  // and no token also those that ended.
  SessionPage ListSessions(int64_t page_size, const std::string& page_token, bool show_ended);

  EngineStats stats() const;
  const EngineOptions& options() const;

  // From now on new calls fail with DRAINING; those accepted go on.
  void Drain();
  // Whether nothing waits or runs, at the latest at `deadline`.
  bool WaitUntilIdle(std::chrono::steady_clock::time_point deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_ENGINE_H_
