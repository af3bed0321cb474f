// Inside of Engine: queues, the session list, the scheduler's thread.
#ifndef ATTNSERVE_LIB_ENGINE_ENGINE_IMPL_H_
#define ATTNSERVE_LIB_ENGINE_ENGINE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/engine/engine.h"
#include "lib/engine/step_rounds.h"
#include "lib/engine/work.h"
#include "lib/engine/worker_pool.h"
#include "lib/engine/yielding_runner.h"

namespace attnserve {

// A living session and what waits for it. Guarded by the engine's lock, but for `session`, which
// belongs to whoever schedules.
struct SessionEntry {
  std::shared_ptr<Session> session;
  SessionInfo info;  // as of the last completed step
  std::deque<std::unique_ptr<Work>> waiting;
  bool running = false;
  int64_t last_round = -1;  // see StepRounds; belongs to whoever schedules
  std::chrono::steady_clock::time_point last_used;
};

class Engine::Impl {
 public:
  explicit Impl(const EngineOptions& options);
  ~Impl();

  void SubmitStateless(Call* call, absl::StatusOr<std::unique_ptr<Work>> work);
  void SubmitDecode(DecodeCall* call);
  void SubmitSession(SessionCall* call);
  absl::StatusOr<CreatedSession> CreateSession(const CreateSessionOptions& options);
  absl::StatusOr<SessionInfo> GetSession(const std::string& id);
  SessionPage ListSessions(int64_t page_size, const std::string& page_token, bool show_ended);
  EngineStats stats();
  void Drain();
  bool WaitUntilIdle(std::chrono::steady_clock::time_point deadline);

  const EngineOptions& options() const { return options_; }
  const WorkContext& work_context() const { return context_; }

 private:
  using Entry = std::shared_ptr<SessionEntry>;
  using Works = std::vector<std::unique_ptr<Work>>;

  // Works of one layer and phase that run side by side.
  struct Batch {
    ParallelRunner* runner;
    LayerWorkspace workspace;
    std::vector<Work*> works;
    std::vector<PassRows> rows;
  };

  // Submission (engine.cc).
  absl::Status CheckQueue(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Reject(Call* call, const absl::Status& status);

  // Sessions (engine_sessions.cc).
  Entry Find(std::string_view id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const Entry& entry, EndReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SessionInfo Snapshot(const SessionEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enqueue(const Entry& entry, std::unique_ptr<Work> work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PushReady(std::unique_ptr<Work> work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Scheduling (scheduler.cc): on the scheduler's thread, or in Submit on behalf of one light step;
  // whoever set `scheduling_` does it.
  void SchedulerLoop();
  bool WaitForWork(Works* fresh);
  bool MayRunInSubmit(const DecodeCall& call, const SessionEntry& entry, Work& work) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunInSubmit(std::unique_ptr<Work> work);
  void GatherSteps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeReady(Works* fresh) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeAll(Works* fresh) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunRound(Works* fresh);
  void BeginWork(std::unique_ptr<Work> work);
  void RunSteps();
  void LetStepsPass();
  Work* FirstSmall(bool steps_only);
  bool InSlice(const Work& work) const;
  void RunSmallBatch(const Work& first);
  void RunSlice();
  void RunBatch(Batch& batch, int64_t limit);
  void Settle();
  void Complete(std::unique_ptr<Work> work, const absl::Status& status);
  void Report(const Work& work, const absl::Status& status);

  const EngineOptions options_;
  EngineObserver default_observer_;
  EngineObserver& observer_;
  KvBlockPool session_pool_;
  KvBlockPool scratch_pool_;
  const WorkContext context_;

  mutable Mutex mutex_;
  CondVar work_arrived_;
  CondVar idle_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t queued_calls_ ABSL_GUARDED_BY(mutex_) = 0;  // waiting or running, until Done has returned
  int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_generation_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, Entry, std::less<>> sessions_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point next_expiry_ ABSL_GUARDED_BY(mutex_){};
  Tombstones tombstones_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<Work>> ready_ ABSL_GUARDED_BY(mutex_);      // steps at their turn
  std::atomic<bool> steps_ready_{false};                                 // whether ready_ has any
  std::deque<std::unique_ptr<Work>> stateless_ ABSL_GUARDED_BY(mutex_);  // begun a few at a time
  bool scheduling_ ABSL_GUARDED_BY(mutex_) = true;  // some thread does; at first the scheduler's

  // Belongs to the thread that set `scheduling_`.
  WorkerPool workers_;
  YieldingRunner yielding_workers_;
  std::list<std::unique_ptr<Work>> active_;  // begun, in order of arrival
  StepRounds rounds_;
  Batch small_{&workers_, {}, {}, {}};
  Batch slice_{&yielding_workers_, {}, {}, {}};  // its one work while it runs, else none
  int64_t active_stateless_ = 0;

  std::thread scheduler_;  // last: starts when everything else is there
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_ENGINE_IMPL_H_
