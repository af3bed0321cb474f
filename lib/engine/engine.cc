#include "lib/engine/engine.h"

#include <utility>

#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/engine/engine_impl.h"

namespace attnserve {

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kDecode:
      return "decode";
    case Phase::kPrefill:
      return "prefill";
    case Phase::kForward:
      return "forward";
    case Phase::kAttend:
      return "attend";
  }
  return "?";
}

void* CallSink::Present(bool, DType, absl::Span<const int64_t>) { return nullptr; }

Engine::Impl::Impl(const EngineOptions& options)
    : options_(options),
      observer_(options.observer != nullptr ? *options.observer : default_observer_),
      session_pool_(options.kv_budget_bytes),
      scratch_pool_(INT64_MAX),
      context_{&options_.limits, &session_pool_, &scratch_pool_},
      workers_(options.worker_count),
      yielding_workers_(&workers_,
                        {options.limits.step_wait, [this] { return steps_ready_.load(); },
                         [this] { LetStepsPass(); }}),
      scheduler_([this] { SchedulerLoop(); }) {}

Engine::Impl::~Impl() {
  {
    MutexLock lock(mutex_);
    draining_ = true;
    stopping_ = true;
    work_arrived_.NotifyAll();
  }
  scheduler_.join();
}

absl::Status Engine::Impl::CheckQueue(const Call& call) {
  if (draining_) return Draining();
  const EngineLimits& limits = options_.limits;
  if (queued_calls_ >= limits.max_queued_calls) {
    return QueueFull("calls", limits.max_queued_calls);
  }
  // A single call above the limit may pass through an empty queue.
  if (queued_bytes_ > 0 && queued_bytes_ + call.request_bytes > limits.max_queued_bytes) {
    return QueueFull("bytes", limits.max_queued_bytes);
  }
  return absl::OkStatus();
}

void Engine::Impl::Count(const Call& call) {
  ++queued_calls_;
  queued_bytes_ += call.request_bytes;
}

void Engine::Impl::Reject(Call* call, const absl::Status& status) {
  if (const auto detail = GetErrorDetail(status)) observer_.OnRejected(detail->reason);
  call->sink->Done(status);
}

void Engine::Impl::SubmitStateless(Call* call, absl::StatusOr<std::unique_ptr<Work>> work) {
  if (!work.ok()) return Reject(call, work.status());
  absl::Status status;
  {
    MutexLock lock(mutex_);
    status = CheckQueue(*call);
    if (status.ok()) {
      Count(*call);
      stateless_.push_back(*std::move(work));
      work_arrived_.NotifyOne();
    }
  }
  if (!status.ok()) Reject(call, status);
}

void Engine::Impl::SubmitDecode(DecodeCall* call) {
  const std::string_view id = call->session_id;
  Entry entry;
  absl::Status status;
  {
    MutexLock lock(mutex_);
    entry = Find(id);
    status = CheckQueue(*call);
    if (status.ok() && entry == nullptr) status = tombstones_.WhyGone(id, options_.clock());
  }
  if (!status.ok()) {
    if (call->chain == nullptr) return Reject(call, status);
    if (call->error.ok()) call->error = status;
  }
  std::unique_ptr<Work> work =
      MakeDecodeWork(call, entry != nullptr ? entry->session : nullptr, context_);
  {
    MutexLock lock(mutex_);
    Count(*call);
    if (entry != nullptr && Find(id) != entry) {
      call->error = tombstones_.WhyGone(id, options_.clock());
      entry = nullptr;
    }
    if (entry == nullptr) return PushReady(std::move(work));
    if (!MayRunInSubmit(*call, *entry, *work)) return Enqueue(entry, std::move(work));
    work->entry = entry;
    entry->running = true;
    scheduling_ = true;
  }
  RunInSubmit(std::move(work));
}

void Engine::Impl::Drain() {
  MutexLock lock(mutex_);
  draining_ = true;
}

bool Engine::Impl::WaitUntilIdle(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (queued_calls_ > 0) {
    if (!idle_.WaitUntil(mutex_, deadline)) return queued_calls_ == 0;
  }
  return true;
}

EngineStats Engine::Impl::stats() {
  const KvBlockPool::Usage sessions = session_pool_.usage();
  const KvBlockPool::Usage scratch = scratch_pool_.usage();
  EngineStats stats;
  stats.kv_budget_bytes = sessions.budget_bytes;
  stats.kv_charged_bytes = sessions.charged_bytes;
  stats.kv_block_bytes = sessions.block_bytes;
  stats.kv_slab_free_bytes = sessions.slab_free_bytes + scratch.slab_free_bytes;
  stats.scratch_bytes = scratch.block_bytes;
  MutexLock lock(mutex_);
  stats.session_count = static_cast<int64_t>(sessions_.size());
  stats.queued_calls = queued_calls_;
  stats.queued_bytes = queued_bytes_;
  return stats;
}

Engine::Engine(const EngineOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;

void Engine::Submit(ForwardCall* call) {
  call->arrival = std::chrono::steady_clock::now();
  impl_->SubmitStateless(call, MakeForwardWork(call, impl_->work_context()));
}

void Engine::Submit(AttendCall* call) {
  call->arrival = std::chrono::steady_clock::now();
  impl_->SubmitStateless(call, MakeAttendWork(call, impl_->work_context()));
}

void Engine::Submit(DecodeCall* call) {
  call->arrival = std::chrono::steady_clock::now();
  impl_->SubmitDecode(call);
}

void Engine::Submit(SessionCall* call) {
  call->arrival = std::chrono::steady_clock::now();
  impl_->SubmitSession(call);
}

absl::StatusOr<CreatedSession> Engine::CreateSession(const CreateSessionOptions& options) {
  return impl_->CreateSession(options);
}

absl::StatusOr<SessionInfo> Engine::GetSession(const std::string& id) {
  return impl_->GetSession(id);
}

SessionPage Engine::ListSessions(int64_t page_size, const std::string& page_token,
                                 bool show_ended) {
  return impl_->ListSessions(page_size, page_token, show_ended);
}

EngineStats Engine::stats() const { return impl_->stats(); }
const EngineOptions& Engine::options() const { return impl_->options(); }
void Engine::Drain() { impl_->Drain(); }

bool Engine::WaitUntilIdle(std::chrono::steady_clock::time_point deadline) {
  return impl_->WaitUntilIdle(deadline);
}

}  // namespace attnserve
