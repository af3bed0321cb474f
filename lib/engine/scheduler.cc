#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "lib/base/errors.h"
#include "lib/engine/engine_impl.h"

namespace attnserve {
namespace {

// Works of at most this many rows are batched with others of their layer and go before longer ones.
constexpr int64_t kSmallRows = 16;
// Rows one batch of small works has at most: enough for a product to run at full speed.
constexpr int64_t kBatchRows = 512;
// Stateless calls in progress at once; each holds the keys of a wave.
constexpr int64_t kActiveStateless = 16;
// Keys up to which a slice has its full number of rows; beyond, it has fewer.
constexpr int64_t kSliceKeys = 4096;
// How often idle sessions are looked for.
constexpr std::chrono::seconds kExpiryInterval{1};

bool IsSmall(const Work& work) { return work.rows_left() <= kSmallRows; }

absl::Status GivenUp(const Call& call) {
  if (call.cancelled.load(std::memory_order_relaxed)) return CallCancelled();
  if (std::chrono::steady_clock::now() >= call.deadline) return CallDeadlineExceeded();
  return absl::OkStatus();
}

// Runs `step`, which returns a status, turning an exception of the standard library into one.
template <typename Step>
absl::Status Guarded(Step step) {
  try {
    return step();
  } catch (const std::exception& e) {
    return KernelFailure(e.what());
  }
}

}  // namespace

void Engine::Impl::SchedulerLoop() {
  Works fresh;
  while (WaitForWork(&fresh)) {
    RunRound(&fresh);
    if (const Work* small = FirstSmall(/*steps_only=*/false)) RunSmallBatch(*small);
    RunSlice();
  }
  for (std::unique_ptr<Work>& work : fresh) Complete(std::move(work), Draining());
  while (!active_.empty()) {
    std::unique_ptr<Work> work = std::move(active_.front());
    active_.pop_front();
    Complete(std::move(work), Draining());
  }
}

// Waits until there is something to do; false when the engine stops, with all that waits in
// `fresh`.
bool Engine::Impl::WaitForWork(Works* fresh) {
  using Clock = std::chrono::steady_clock;
  MutexLock lock(mutex_);
  scheduling_ = false;
  while (true) {
    // A busy server looks after expired sessions too.
    if (!sessions_.empty() && Clock::now() >= next_expiry_) {
      ExpireIdle();
      next_expiry_ = Clock::now() + kExpiryInterval;
    }
    if (!scheduling_ && (stopping_ || !ready_.empty() || !active_.empty() || !stateless_.empty())) {
      break;
    }
    if (sessions_.empty()) {
      work_arrived_.Wait(mutex_);
    } else {
      work_arrived_.WaitUntil(mutex_, next_expiry_);
    }
  }
  scheduling_ = true;
  GatherSteps();
  if (stopping_) {
    TakeAll(fresh);
  } else {
    TakeReady(fresh);
    while (!stateless_.empty() && active_stateless_ < kActiveStateless) {
      fresh->push_back(std::move(stateless_.front()));
      stateless_.pop_front();
      ++active_stateless_;
    }
  }
  return !stopping_;
}

// Waits for the steps that a round should not run without.
void Engine::Impl::GatherSteps() {
  if (ready_.empty()) return;
  const StepRounds::Time end =
      rounds_.WaitsUntil(std::chrono::steady_clock::now(), ready_.front()->call().arrival,
                         static_cast<int64_t>(ready_.size()));
  const size_t sessions = static_cast<size_t>(rounds_.expected_sessions());
  while (!stopping_ && ready_.size() < sessions && work_arrived_.WaitUntil(mutex_, end)) {
  }
}

// Begins works and runs the steps among them to their ends.
void Engine::Impl::RunRound(Works* fresh) {
  const auto is_step = [](const std::unique_ptr<Work>& work) { return work->entry != nullptr; };
  const bool any = std::any_of(fresh->begin(), fresh->end(), is_step);
  if (any) rounds_.Begin(std::chrono::steady_clock::now());
  for (const std::unique_ptr<Work>& work : *fresh) {
    if (work->entry != nullptr) rounds_.Join(&work->entry->last_round);
  }
  for (std::unique_ptr<Work>& work : *fresh) BeginWork(std::move(work));
  fresh->clear();
  RunSteps();
  if (any) rounds_.End(std::chrono::steady_clock::now());
}

// Whether nobody schedules and nothing waits, so that a light step needs no other thread.
bool Engine::Impl::MayRunInSubmit(const DecodeCall& call, const SessionEntry& entry,
                                  Work& work) const {
  const bool idle = !scheduling_ && !stopping_ && ready_.empty() && stateless_.empty();
  return idle && call.may_run_in_submit && !entry.running && entry.waiting.empty() &&
         work.is_light();
}

void Engine::Impl::RunInSubmit(std::unique_ptr<Work> work) {
  BeginWork(std::move(work));
  RunSteps();
  MutexLock lock(mutex_);
  scheduling_ = false;
  if (stopping_ || !ready_.empty() || !active_.empty() || !stateless_.empty()) {
    work_arrived_.NotifyOne();
  }
}

// Steps at their turn.
void Engine::Impl::TakeReady(Works* fresh) {
  for (std::unique_ptr<Work>& work : ready_) fresh->push_back(std::move(work));
  ready_.clear();
  steps_ready_.store(false, std::memory_order_relaxed);
}

// Everything that waits, to be failed.
void Engine::Impl::TakeAll(Works* fresh) {
  TakeReady(fresh);
  for (std::unique_ptr<Work>& work : stateless_) {
    fresh->push_back(std::move(work));
    ++active_stateless_;
  }
  stateless_.clear();
  for (const auto& [id, entry] : sessions_) {
    for (std::unique_ptr<Work>& work : entry->waiting) fresh->push_back(std::move(work));
    entry->waiting.clear();
  }
}

void Engine::Impl::BeginWork(std::unique_ptr<Work> work) {
  if (absl::Status status = GivenUp(work->call()); !status.ok()) {
    return Complete(std::move(work), status);
  }
  if (work->session_call() == nullptr) {
    observer_.OnQueueWait(work->phase(), std::chrono::steady_clock::now() - work->call().arrival);
  }
  absl::Status status = Guarded([&work] { return work->Begin(); });
  if (!status.ok() || work->finished()) return Complete(std::move(work), status);
  active_.push_back(std::move(work));
}

// The oldest small work, if `steps_only` of a session; null: none. Not what runs in a slice.
Work* Engine::Impl::FirstSmall(bool steps_only) {
  for (const std::unique_ptr<Work>& work : active_) {
    if (InSlice(*work) || !IsSmall(*work)) continue;
    if (!steps_only || work->entry != nullptr) return work.get();
  }
  return nullptr;
}

bool Engine::Impl::InSlice(const Work& work) const {
  return !slice_.works.empty() && slice_.works.front() == &work;
}

// Runs the steps that have begun to their ends, through all layers.
void Engine::Impl::RunSteps() {
  while (const Work* step = FirstSmall(/*steps_only=*/true)) RunSmallBatch(*step);
}

// Within a slice: steps that have come to their turn meanwhile go first.
void Engine::Impl::LetStepsPass() {
  Works fresh;
  {
    MutexLock lock(mutex_);
    GatherSteps();
    if (stopping_) return;
    TakeReady(&fresh);
  }
  RunRound(&fresh);
}

// Runs all small works that are where `first` is, side by side.
void Engine::Impl::RunSmallBatch(const Work& first) {
  const AttentionLayer* layer = first.layer();
  const PassPhase phase = first.pass_phase();
  small_.works.clear();
  int64_t rows = 0;
  for (const std::unique_ptr<Work>& work : active_) {
    if (rows >= kBatchRows) break;
    if (InSlice(*work) || !IsSmall(*work)) continue;
    if (work->layer() != layer || work->pass_phase() != phase) continue;
    small_.works.push_back(work.get());
    rows += work->rows_left();
  }
  if (small_.works.size() > 1) rounds_.Share();
  RunBatch(small_, kSmallRows);
  if (phase == PassPhase::kAppendKeys) {  // their queries follow at once, still side by side
    small_.works.erase(std::remove_if(small_.works.begin(), small_.works.end(),
                                      [layer](Work* work) {
                                        return !work->error.ok() || work->finished() ||
                                               work->layer() != layer || !IsSmall(*work) ||
                                               work->pass_phase() != PassPhase::kAttend;
                                      }),
                       small_.works.end());
    if (!small_.works.empty()) RunBatch(small_, kSmallRows);
  }
  Settle();
}

void Engine::Impl::RunSlice() {
  const auto is_large = [](const std::unique_ptr<Work>& work) { return !IsSmall(*work); };
  const auto next = std::find_if(active_.begin(), active_.end(), is_large);
  if (next == active_.end()) return;
  Work& work = **next;
  const int64_t slice = options_.limits.slice_rows;
  const int64_t limit =
      std::max(kSmallRows, slice * kSliceKeys / std::max(kSliceKeys, work.keys()));
  slice_.works.assign(1, &work);
  RunBatch(slice_, std::min(limit, slice));
  slice_.works.clear();
  active_.splice(active_.end(), active_, next);  // long calls take turns
  Settle();
}

// Runs the next rows, at most `limit` each, of the batch's works.
void Engine::Impl::RunBatch(Batch& batch, int64_t limit) {
  const AttentionLayer& layer = *batch.works.front()->layer();
  const PassPhase phase = batch.works.front()->pass_phase();
  batch.rows.clear();
  int64_t row_count = 0;
  for (Work* work : batch.works) row_count += work->Take(limit, &batch.rows);
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds yielded_before = yielding_workers_.yielded();
  const absl::Status status = Guarded([&] {
    return phase == PassPhase::kAppendKeys
               ? layer.AppendKeys(batch.rows, *batch.runner, batch.workspace)
               : layer.Attend(batch.rows, *batch.runner, batch.workspace);
  });
  observer_.OnBatch(
      batch.works.front()->phase(), static_cast<int64_t>(batch.works.size()), row_count,
      std::chrono::steady_clock::now() - start - (yielding_workers_.yielded() - yielded_before));
  for (Work* work : batch.works) {
    work->error = status.ok() ? Guarded([work] { return work->Advance(); }) : status;
  }
}

// Completes the active works that have finished, failed, or been given up.
void Engine::Impl::Settle() {
  for (auto it = active_.begin(); it != active_.end();) {
    Work& work = **it;
    const bool runs_on = InSlice(work);
    if (!runs_on && work.error.ok() && !work.finished()) work.error = GivenUp(work.call());
    if (runs_on || (work.error.ok() && !work.finished())) {
      ++it;
      continue;
    }
    std::unique_ptr<Work> done = std::move(*it);
    it = active_.erase(it);
    const absl::Status status = done->error;
    Complete(std::move(done), status);
  }
}

void Engine::Impl::Report(const Work& work, const absl::Status& status) {
  if (status.ok()) {
    observer_.OnTokens(work.phase(), work.tokens());
    if (work.masked_rows() > 0) observer_.OnMaskedRows(work.masked_rows());
    if (work.nonfinite_values() > 0) observer_.OnNonFinite(work.nonfinite_values());
  } else if (absl::IsCancelled(status)) {
    observer_.OnCancelled("cancelled");
  } else if (absl::IsDeadlineExceeded(status)) {
    observer_.OnCancelled("deadline");
  } else if (const auto detail = GetErrorDetail(status)) {
    observer_.OnRejected(detail->reason);
  }
}

void Engine::Impl::Complete(std::unique_ptr<Work> work, const absl::Status& status) {
  if (status.ok()) {
    work->Commit();
  } else {
    work->Abort();
  }
  SessionCall* session_call = work->session_call();
  if (session_call == nullptr) Report(*work, status);
  Call& call = work->call();
  const int64_t request_bytes = call.request_bytes;
  Works orphans;
  {
    MutexLock lock(mutex_);
    if (const Entry& entry = work->entry) {
      entry->session->UpdateInfo(&entry->info);
      entry->running = false;
      entry->last_used = options_.clock();
      const bool deleted = status.ok() && session_call != nullptr && session_call->existed;
      if (deleted) {
        std::move(entry->waiting.begin(), entry->waiting.end(), std::back_inserter(orphans));
        entry->waiting.clear();
        End(entry, EndReason::kDeleted);
      } else if (!entry->waiting.empty()) {
        entry->running = true;
        PushReady(std::move(entry->waiting.front()));
        entry->waiting.pop_front();
      }
      if (session_call != nullptr) session_call->info = Snapshot(*entry);
    } else if (work->phase() == Phase::kForward || work->phase() == Phase::kAttend) {
      --active_stateless_;
    }
  }
  const std::string session_id(orphans.empty() ? std::string_view() : session_call->session_id);
  work.reset();
  call.sink->Done(status);  // last use of the call
  {
    MutexLock lock(mutex_);
    queued_bytes_ -= request_bytes;
    if (--queued_calls_ == 0) idle_.NotifyAll();
  }
  for (std::unique_ptr<Work>& orphan : orphans) {
    orphan->entry = nullptr;
    const SessionCall* const waiting = orphan->session_call();
    const bool deletes = waiting != nullptr && waiting->kind == SessionCall::Kind::kDelete;
    Complete(std::move(orphan), deletes ? absl::OkStatus() : SessionNotFound(session_id));
  }
}

}  // namespace attnserve
