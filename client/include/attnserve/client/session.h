// A session of the server, as its owner sees it.
#ifndef ATTNSERVE_CLIENT_SESSION_H_
#define ATTNSERVE_CLIENT_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnserve/client/options.h"
#include "attnserve/v1/attention_service.pb.h"
#include "attnserve/v1/session_service.pb.h"

namespace attnserve::client {

namespace internal {
struct Connection;
}

// Owns a session of the server: the destructor deletes it there, unless Detach was called or the
// object came from Client::AttachSession. Made by Client; outlives it if need be.
//
// It knows how many tokens each layer holds and sends that with every step (expected_position),
// together with an id of the step (request_id). A step that is repeated after a lost reply is
// therefore applied once, and a second writer is noticed (ABORTED POSITION_CONFLICT) instead of
// mixing two texts. Calls return the errors listed in the protos.
//
// Not thread-safe. Different sessions may be used by different threads.
class Session {
 public:
  Session(Session&& other) noexcept;
  Session& operator=(Session&& other) noexcept;
  ~Session();

  const std::string& id() const { return id_; }
  int layer_count() const { return static_cast<int>(lengths_.size()); }

  // Tokens of `layer` as known here: after the last reply, prepared steps included.
  int64_t length(int layer) const { return lengths_[static_cast<size_t>(layer)]; }

  // What CreateSession answered: bytes per token and block, and so on. Only `session` is set in an
  // attached session.
  const v1::CreateSessionResponse& created() const { return created_; }

  // Runs one step. Of `step` the caller sets the inputs, and `layer`, attention_mask, tree_mask,
  // positions and stages as needed; session_id, expected_position and request_id are set here, if
  // they are not. Repeated as ClientOptions.retry says.
  //
  // After DEADLINE_EXCEEDED or UNAVAILABLE the step may have been applied: GetState says.
  absl::StatusOr<v1::DecodeResponse> Decode(v1::DecodeRequest step, const CallOptions& call = {});

  // For steps that travel through a DecodeStream or Client::DecodeBatch: Prepare sets session_id,
  // expected_position and request_id as Decode does and counts the step's tokens as applied, so
  // that the next one can follow without waiting; Settle takes the outcome, and takes the tokens
  // back if it is an error. Settle steps in the order in which they were prepared.
  void Prepare(v1::DecodeRequest* step);
  void Settle(const v1::DecodeRequest& step, const absl::StatusOr<v1::DecodeResponse>& outcome);

  // The session as it stands; the lengths known here follow it.
  absl::StatusOr<v1::Session> GetState(const CallOptions& call = {});

  // Drops the cached tokens of `layers`, or of all if empty.
  absl::StatusOr<v1::Session> ResetCache(const std::vector<int32_t>& layers = {},
                                         const CallOptions& call = {});

  // Rolls every layer back to at most `length` tokens.
  absl::StatusOr<v1::Session> Truncate(int64_t length, const CallOptions& call = {});

  // Deletes the session on the server now. False if it was gone already.
  absl::StatusOr<bool> Delete(const CallOptions& call = {});

  // Leaves the session on the server; the destructor does nothing. Returns its id.
  std::string Detach();

 private:
  friend class Client;
  Session(std::shared_ptr<internal::Connection> connection, v1::CreateSessionResponse created,
          bool owned);

  // The steps of `layer`, or the first layer for steps through all of them.
  int64_t ExpectedPosition(const v1::DecodeRequest& step) const;
  void SetLength(const v1::DecodeRequest& step, int64_t length);
  absl::StatusOr<v1::Session> Adopt(absl::StatusOr<v1::Session> state);

  std::shared_ptr<internal::Connection> connection_;  // null: nothing to delete
  std::string id_;
  v1::CreateSessionResponse created_;
  std::vector<int64_t> lengths_;  // [layers]
  std::string request_prefix_;    // random, so that ids of two owners never meet
  int64_t request_count_ = 0;
  bool owned_ = false;
};

}  // namespace attnserve::client

#endif  // ATTNSERVE_CLIENT_SESSION_H_
