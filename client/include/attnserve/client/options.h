// How a client connects, waits and repeats.
#ifndef ATTNSERVE_CLIENT_OPTIONS_H_
#define ATTNSERVE_CLIENT_OPTIONS_H_

#include <chrono>
#include <memory>

namespace grpc {
class ChannelCredentials;
}

namespace attnserve::client {

// When a failed attempt is repeated. Repeated are, within the deadline of the whole call:
//   UNAVAILABLE                     nobody answered, or the server is stopping;
//   RESOURCE_EXHAUSTED + RetryInfo  after the delay the server asks for;
//   DEADLINE_EXCEEDED of an attempt (see attempt_timeout).
// A call that would not be safe to apply twice is repeated only if the server said that it did not
// apply it. Decode steps of a Session are always safe: each carries a request_id.
struct RetryPolicy {
  // Attempts of one call, the first included. 1: never repeat.
  int max_attempts = 8;
  // Wait before the second attempt; each further wait is `multiplier` times as long, up to
  // max_backoff. Every wait varies at random by a fifth, so that clients do not come back together.
  std::chrono::milliseconds initial_backoff{50};
  std::chrono::milliseconds max_backoff{2000};
  double multiplier = 2.0;
  // Longest attempt of a call that is cheap to send again: everything but Forward, Attend and steps
  // of more than 64 tokens, which may compute for long and would start anew. 0: the whole deadline.
  std::chrono::milliseconds attempt_timeout{10000};
};

struct ClientOptions {
  // Deadline of a call, its repetitions included, where CallOptions says nothing.
  std::chrono::milliseconds timeout{30000};
  // How long Connect waits for a server that refuses connections at first. 0: it must be up.
  std::chrono::milliseconds wait_for_server{0};
  // Longest life of a DecodeStream.
  std::chrono::milliseconds stream_timeout{std::chrono::hours(1)};
  RetryPolicy retry;
  // Largest reply accepted; the server has its own limit (GetServerInfo). -1: any size.
  int max_receive_bytes = 256 << 20;
  // Largest request sent. -1: any size, the server decides.
  int max_send_bytes = -1;
  // Null: no encryption.
  std::shared_ptr<::grpc::ChannelCredentials> credentials;
};

struct CallOptions {
  // Deadline of this call, its repetitions included. 0: ClientOptions.timeout.
  std::chrono::milliseconds timeout{0};
};

}  // namespace attnserve::client

#endif  // ATTNSERVE_CLIENT_OPTIONS_H_
