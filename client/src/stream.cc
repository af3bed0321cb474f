#include "attnserve/client/stream.h"

#include <grpcpp/support/sync_stream.h>

#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/src/connection.h"

namespace attnserve::client {

class DecodeStream::State {
 public:
  explicit State(std::shared_ptr<internal::Connection> connection)
      : connection_(std::move(connection)) {
    context_.set_deadline(std::chrono::system_clock::now() + connection_->options.stream_timeout);
    call_ = connection_->attention->StreamDecode(&context_);
    reader_ = std::thread([this] { ReadReplies(); });
  }

  ~State() {
    Cancel();
    Close().IgnoreError();
    reader_.join();
  }

  void Send(v1::DecodeRequest step, Callback done) {
    v1::StreamDecodeRequest request;
    *request.mutable_step() = std::move(step);
    if (absl::Status refusal = Write(&request, &done); !refusal.ok()) done(std::move(refusal));
  }

  absl::Status Close() {
    {
      absl::MutexLock write_lock(&write_mutex_);
      absl::MutexLock lock(&mutex_);
      if (!closed_ && !over_) call_->WritesDone();
      closed_ = true;
    }
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
    return outcome_;
  }

  void Cancel() { context_.TryCancel(); }

 private:
  // Takes `done` and sends the request, or says why it does not.
  absl::Status Write(v1::StreamDecodeRequest* request, Callback* done) {
    absl::MutexLock write_lock(&write_mutex_);
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return absl::FailedPreconditionError("the stream is closed");
      if (over_ && !outcome_.ok()) return outcome_;
      if (over_) return absl::FailedPreconditionError("the server has ended the stream");
      request->set_correlation_id(++last_id_);
      waiting_.emplace(last_id_, std::move(*done));
    }
    // A failed write breaks the stream: ReadReplies ends and answers this step with the others.
    call_->Write(*request);
    return absl::OkStatus();
  }

  void ReadReplies() {
    v1::StreamDecodeResponse reply;
    while (call_->Read(&reply)) {
      Callback done = Take(reply.correlation_id());
      if (done == nullptr) continue;
      absl::Status status = FromRpcStatus(reply.result().status());
      if (status.ok()) {
        done(std::move(*reply.mutable_result()->mutable_response()));
      } else {
        done(std::move(status));
      }
    }
    const absl::Status outcome = FromGrpcStatus(call_->Finish());
    std::map<int64_t, Callback> unanswered;
    {
      absl::MutexLock lock(&mutex_);
      over_ = true;
      outcome_ = outcome;
      unanswered.swap(waiting_);
    }
    for (auto& [id, done] : unanswered) {
      done(outcome.ok() ? absl::InternalError("the stream ended without an answer to this step")
                        : outcome);
    }
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  Callback Take(int64_t id) {
    absl::MutexLock lock(&mutex_);
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return nullptr;
    Callback done = std::move(found->second);
    waiting_.erase(found);
    return done;
  }

  const std::shared_ptr<internal::Connection> connection_;
  ::grpc::ClientContext context_;
  std::unique_ptr<::grpc::ClientReaderWriter<v1::StreamDecodeRequest, v1::StreamDecodeResponse>>
      call_;
  std::thread reader_;
  absl::Mutex write_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one write at a time
  absl::Mutex mutex_;
  std::map<int64_t, Callback> waiting_ ABSL_GUARDED_BY(mutex_);  // by correlation id
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // Close was called
  bool over_ ABSL_GUARDED_BY(mutex_) = false;    // the call has ended, with outcome_
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;   // and every callback has run
  absl::Status outcome_ ABSL_GUARDED_BY(mutex_);
};

DecodeStream::DecodeStream(std::shared_ptr<internal::Connection> connection)
    : state_(std::make_unique<State>(std::move(connection))) {}

DecodeStream::~DecodeStream() = default;

void DecodeStream::Send(v1::DecodeRequest step, Callback done) {
  state_->Send(std::move(step), std::move(done));
}

std::future<absl::StatusOr<v1::DecodeResponse>> DecodeStream::Send(v1::DecodeRequest step) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<v1::DecodeResponse>>>();
  auto future = promise->get_future();
  Send(std::move(step), [promise](absl::StatusOr<v1::DecodeResponse> outcome) {
    promise->set_value(std::move(outcome));
  });
  return future;
}

absl::Status DecodeStream::Close() { return state_->Close(); }

void DecodeStream::Cancel() { state_->Cancel(); }

}  // namespace attnserve::client
