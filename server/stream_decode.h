// AttentionService.StreamDecode.
//
// Life of a step: read, submitted, ended (by the engine, in order within a session), written. From
// read to written it is outstanding. What happens is decided under the stream's lock and done after
// it has been released, so that gRPC and the engine are never called with the lock held.
#ifndef ATTNSERVE_SERVER_STREAM_DECODE_H_
#define ATTNSERVE_SERVER_STREAM_DECODE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "attnserve/v1/attention_service.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "lib/base/mutex.h"
#include "server/backend.h"
#include "server/decode_step.h"
#include "server/rpc_scope.h"

namespace attnserve {

// Most steps, and bytes of their requests and replies, that are outstanding on one stream; then it
// stops reading. A single step may be larger.
inline constexpr int kMaxOutstandingSteps = 64;
inline constexpr int64_t kMaxOutstandingBytes = int64_t{64} << 20;
// Sessions of one stream that are remembered because their last step failed; more than a server has
// sessions. Beyond, steps of further sessions fail with QUEUE_FULL.
inline constexpr size_t kMaxStreamSessions = 16384;

class StreamDecodeReactor;

// The streams that are open. Thread-safe.
class OpenStreams {
 public:
  // From now on streams end, with DRAINING, when nothing is outstanding.
  void Drain();

 private:
  friend class StreamDecodeReactor;
  // Returns whether Drain has been called.
  bool Add(StreamDecodeReactor* stream);
  void Remove(StreamDecodeReactor* stream);

  Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_set<StreamDecodeReactor*> streams_ ABSL_GUARDED_BY(mutex_);
};

// One stream. Deletes itself when it is done. Thread-safe.
class StreamDecodeReactor final
    : public grpc::ServerBidiReactor<attnserve::v1::StreamDecodeRequest,
                                     attnserve::v1::StreamDecodeResponse> {
 public:
  // Both outlive the stream.
  StreamDecodeReactor(const Backend& backend, OpenStreams* streams,
                      const grpc::CallbackServerContext& context);

  void Start();
  void Drain();

 private:
  class Step;
  // The steps of one session that have not ended, and whether the last that ended failed.
  struct SessionSteps {
    StepChain chain;
    int running = 0;
  };
  using Sessions = std::unordered_map<std::string, SessionSteps>;

  // What to do after the lock has been released.
  struct Actions {
    bool read = false;
    Step* write = nullptr;
    bool finish = false;
    absl::Status status;
  };

  ~StreamDecodeReactor() override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Submit(Step* step);
  void StepEnded(Step* step);
  void CancelLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveLocked(Step* step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveSession(Step* step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `may_read`: whether the caller keeps this object alive until Act has returned, as gRPC does
  // during a reaction. (A write keeps it alive by itself.)
  Actions Decide(bool may_read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Static because with nothing to do `stream` may be gone: since the lock was released, another
  // thread may have finished it. If it finishes, this is the last use of it.
  static void Act(StreamDecodeReactor* stream, const Actions& actions);

  const Backend& backend_;
  OpenStreams& streams_;
  RpcScope scope_;
  const std::chrono::steady_clock::time_point deadline_;

  std::unique_ptr<Step> reading_;  // the reader's; its request is being read

  Mutex mutex_;
  // A message is being read, or has been read and not yet submitted: the next read comes after, or
  // another reaction could submit a later step first.
  bool read_pending_ ABSL_GUARDED_BY(mutex_) = false;
  Step* writing_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;  // submitted and not ended
  int64_t outstanding_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<Step*, std::unique_ptr<Step>> outstanding_ ABSL_GUARDED_BY(mutex_);
  std::deque<Step*> to_write_ ABSL_GUARDED_BY(mutex_);
  Sessions sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_STREAM_DECODE_H_
