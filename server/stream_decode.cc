#include "server/stream_decode.h"

#include <utility>

#include "lib/base/errors.h"
#include "server/status.h"

namespace attnserve {
namespace {

int64_t RequestBytes(const v1::StreamDecodeRequest& request) {
  return static_cast<int64_t>(request.ByteSizeLong());
}

}  // namespace

class StreamDecodeReactor::Step final : public DecodeStep {
 public:
  explicit Step(StreamDecodeReactor* stream) : stream_(*stream) {}

  v1::StreamDecodeRequest request;
  v1::StreamDecodeResponse reply;
  int64_t bytes = 0;

 private:
  void Ended(const absl::Status& status) override {
    reply.set_correlation_id(request.correlation_id());
    FillResult(status, "step.", reply.mutable_result());
    LogDefect(Rpc::kStreamDecode, status);
    stream_.StepEnded(this);
  }

  StreamDecodeReactor& stream_;
};

bool OpenStreams::Add(StreamDecodeReactor* stream) {
  MutexLock lock(mutex_);
  streams_.insert(stream);
  return draining_;
}

void OpenStreams::Remove(StreamDecodeReactor* stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
}

void OpenStreams::Drain() {
  MutexLock lock(mutex_);
  draining_ = true;
  // A stream that finishes waits in OnDone for this lock before it is deleted.
  for (StreamDecodeReactor* stream : streams_) stream->Drain();
}

StreamDecodeReactor::StreamDecodeReactor(const Backend& backend, OpenStreams* streams,
                                         const grpc::CallbackServerContext& context)
    : backend_(backend),
      streams_(*streams),
      scope_(Rpc::kStreamDecode, &backend.metrics()),
      deadline_(SteadyDeadline(context)) {}

StreamDecodeReactor::~StreamDecodeReactor() = default;

void StreamDecodeReactor::Start() {
  const absl::Status status = backend_.CheckOpen();
  if (!status.ok()) CountRejected(status, &backend_.metrics());
  const bool draining = streams_.Add(this);
  Actions actions;
  {
    MutexLock lock(mutex_);
    draining_ |= draining;
    if (status.ok()) {
      actions = Decide(true);
    } else {
      finished_ = true;
      actions.finish = true;
      actions.status = status;
    }
  }
  Act(this, actions);
}

void StreamDecodeReactor::Drain() {
  Actions actions;
  {
    MutexLock lock(mutex_);
    draining_ = true;
    actions = Decide(false);
  }
  Act(this, actions);
}

void StreamDecodeReactor::OnReadDone(bool ok) {
  Step* step = nullptr;
  Actions actions;
  {
    MutexLock lock(mutex_);
    if (!ok) {
      half_closed_ = true;
    } else if (!finished_ && !cancelled_) {
      step = reading_.get();
      step->bytes = RequestBytes(step->request);
      // What its reply may take, until that is known.
      if (step->request.step().stages_size() > 0) {
        step->bytes += backend_.engine().options().limits.max_stage_bytes;
      }
      outstanding_bytes_ += step->bytes;
      ++running_;
      outstanding_.emplace(step, std::move(reading_));
    }
  }
  if (step != nullptr) Submit(step);
  {
    MutexLock lock(mutex_);
    read_pending_ = false;
    actions = Decide(true);
  }
  Act(this, actions);
}

void StreamDecodeReactor::Submit(Step* step) {
  (void)step->Fill(step->request.step(), step->reply.mutable_result()->mutable_response(),
                   deadline_);
  DecodeCall& call = step->call();
  call.may_run_in_submit = true;
  {
    MutexLock lock(mutex_);
    const std::string session_id(call.session_id);
    auto it = sessions_.find(session_id);
    if (it == sessions_.end() && sessions_.size() < kMaxStreamSessions) {
      it = sessions_.emplace(session_id, SessionSteps()).first;
      it->second.chain.restarts_at_expected_position = true;
    }
    if (it != sessions_.end()) {
      ++it->second.running;
      call.chain = &it->second.chain;
    } else {
      call.error = QueueFull("failed sessions of this stream", kMaxStreamSessions);
    }
  }
  backend_.engine().Submit(&call);
}

void StreamDecodeReactor::StepEnded(Step* step) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    --running_;
    LeaveSession(step);
    outstanding_bytes_ -= step->bytes;
    step->bytes = RequestBytes(step->request) + static_cast<int64_t>(step->reply.ByteSizeLong());
    outstanding_bytes_ += step->bytes;
    if (cancelled_) {
      RemoveLocked(step);
    } else {
      to_write_.push_back(step);
    }
    actions = Decide(false);
  }
  Act(this, actions);
}

void StreamDecodeReactor::OnWriteDone(bool ok) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    RemoveLocked(writing_);
    writing_ = nullptr;
    if (!ok) CancelLocked();
    actions = Decide(true);
  }
  Act(this, actions);
}

void StreamDecodeReactor::OnCancel() {
  Actions actions;
  {
    MutexLock lock(mutex_);
    CancelLocked();
    actions = Decide(false);
  }
  Act(this, actions);
}

void StreamDecodeReactor::OnDone() {
  streams_.Remove(this);
  delete this;
}

void StreamDecodeReactor::CancelLocked() {
  cancelled_ = true;
  for (Step* step : to_write_) RemoveLocked(step);
  to_write_.clear();
  for (const auto& [step, owner] : outstanding_) {
    step->call().cancelled.store(true, std::memory_order_relaxed);
  }
}

void StreamDecodeReactor::RemoveLocked(Step* step) {
  outstanding_bytes_ -= step->bytes;
  outstanding_.erase(step);
}

void StreamDecodeReactor::LeaveSession(Step* step) {
  if (step->call().chain == nullptr) return;
  const auto it = sessions_.find(std::string(step->call().session_id));
  if (--it->second.running == 0 && !it->second.chain.failed) sessions_.erase(it);
}

StreamDecodeReactor::Actions StreamDecodeReactor::Decide(bool may_read) {
  Actions actions;
  if (finished_) return actions;
  if (writing_ == nullptr && !to_write_.empty()) {
    actions.write = writing_ = to_write_.front();
    to_write_.pop_front();
  }
  const bool ending = half_closed_ || cancelled_ || draining_;
  const bool room = outstanding_.size() < size_t{kMaxOutstandingSteps} &&
                    outstanding_bytes_ < kMaxOutstandingBytes;
  if (ending && running_ == 0 && writing_ == nullptr) {
    actions.finish = finished_ = true;
    if (!half_closed_) actions.status = Draining();
    if (cancelled_) actions.status = CallCancelled();
  } else if (!ending && may_read && !read_pending_ && room) {
    actions.read = read_pending_ = true;
    reading_ = std::make_unique<Step>(this);
  }
  return actions;
}

void StreamDecodeReactor::Act(StreamDecodeReactor* stream, const Actions& actions) {
  if (actions.read) stream->StartRead(&stream->reading_->request);
  if (actions.write != nullptr) stream->StartWrite(&actions.write->reply);
  if (actions.finish) {
    stream->scope_.End(actions.status);
    stream->Finish(ToGrpcStatus(actions.status));
  }
}

}  // namespace attnserve
