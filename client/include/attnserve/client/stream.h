// Many steps over one StreamDecode call.
#ifndef ATTNSERVE_CLIENT_STREAM_H_
#define ATTNSERVE_CLIENT_STREAM_H_

#include <functional>
#include <future>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnserve/v1/attention_service.pb.h"

namespace attnserve::client {

namespace internal {
struct Connection;
}

// Sends steps without waiting for the replies of earlier ones. Replies of one session come in the
// order of its steps; those of different sessions in any order. Made by Client::OpenStream.
//
// Steps go out as they are: let Session::Prepare complete them. Nothing is repeated: when the
// stream breaks, every outstanding step gets the stream's error, and may have been applied.
//
// Thread-safe: any thread may Send, Close or Cancel at any time. The object must outlive the calls.
class DecodeStream {
 public:
  using Callback = std::function<void(absl::StatusOr<v1::DecodeResponse>)>;

  // Cancels the stream if it was not closed, then waits for the callbacks that are due.
  ~DecodeStream();
  DecodeStream(const DecodeStream&) = delete;
  DecodeStream& operator=(const DecodeStream&) = delete;

  // Sends a step; `done` gets its outcome, exactly once, on the stream's own thread or, if the
  // stream has ended already, on this one. `done` must not block, nor call Send or Close. Blocks
  // while the server takes no more steps (64 or 64 MiB are outstanding).
  void Send(v1::DecodeRequest step, Callback done);

  // The same with a future.
  std::future<absl::StatusOr<v1::DecodeResponse>> Send(v1::DecodeRequest step);

  // Ends the sending side, waits for all outstanding replies and returns how the stream ended. Send
  // answers FAILED_PRECONDITION from now on. May be called again: same answer.
  absl::Status Close();

  // Gives up: outstanding steps answer CANCELLED; those not started are dropped by the server.
  void Cancel();

 private:
  friend class Client;
  class State;
  explicit DecodeStream(std::shared_ptr<internal::Connection> connection);

  std::unique_ptr<State> state_;
};

}  // namespace attnserve::client

#endif  // ATTNSERVE_CLIENT_STREAM_H_
