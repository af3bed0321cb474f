// Client of an attnserve server.
//
//   auto client = attnserve::client::Client::Connect("127.0.0.1:50051");
//   if (!client.ok()) ...
//   v1::CreateSessionRequest request;
//   request.set_model("llama");
//   auto session = client->CreateSession(request);
//   if (!session.ok()) ...
//   v1::DecodeRequest step;
//   step.set_layer(0);
//   *step.mutable_x() = F32Tensor(x, {1, 1, 64});
//   auto reply = session->Decode(step);
//   if (!reply.ok()) ...                      // status.h says what can be learnt from an error
//   auto output = F32Values(reply->output());
//
// Shapes, defaults and errors are described in the protos.
#ifndef ATTNSERVE_CLIENT_CLIENT_H_
#define ATTNSERVE_CLIENT_CLIENT_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnserve/client/options.h"
#include "attnserve/client/session.h"
#include "attnserve/client/status.h"
#include "attnserve/client/stream.h"
#include "attnserve/client/tensor.h"
#include "attnserve/v1/attention_service.pb.h"
#include "attnserve/v1/model_service.pb.h"
#include "attnserve/v1/session_service.pb.h"

namespace grpc {
class Channel;
}

namespace attnserve::client {

// One connection to one server. Copies share it. Every call has a deadline and is repeated where
// that is safe (options.h). Thread-safe.
class Client {
 public:
  // Connects to "host:port", "unix:/path" or any other gRPC target, and checks that somebody is
  // there. UNAVAILABLE if not.
  static absl::StatusOr<Client> Connect(const std::string& target,
                                        const ClientOptions& options = {});

  // Uses a channel that the caller made; of `options` only what concerns calls matters.
  static Client FromChannel(std::shared_ptr<::grpc::Channel> channel,
                            const ClientOptions& options = {});

  // Models and the server.
  absl::StatusOr<std::vector<v1::Model>> ListModels(const CallOptions& call = {}) const;
  // An empty name is the only served model.
  absl::StatusOr<v1::GetModelResponse> GetModel(const std::string& name,
                                                const CallOptions& call = {}) const;
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(const CallOptions& call = {}) const;

  // Computation that leaves nothing on the server.
  absl::StatusOr<v1::ForwardResponse> Forward(const v1::ForwardRequest& request,
                                              const CallOptions& call = {}) const;
  absl::StatusOr<v1::AttendResponse> Attend(const v1::AttendRequest& request,
                                            const CallOptions& call = {}) const;

  // A new session, deleted with the returned object. Without a session_id in the request the id is
  // drawn here (128 random bits), so that a lost reply costs nothing.
  absl::StatusOr<Session> CreateSession(v1::CreateSessionRequest request,
                                        const CallOptions& call = {}) const;

  // A session that somebody else made; not deleted with the returned object.
  absl::StatusOr<Session> AttachSession(const std::string& id, const CallOptions& call = {}) const;

  absl::StatusOr<v1::Session> GetSession(const std::string& id, const CallOptions& call = {}) const;

  // All sessions, page by page. Sessions that come and go meanwhile may or may not be listed.
  struct SessionList {
    std::vector<v1::Session> sessions;
    std::vector<v1::EndedSession> ended;  // filled if show_ended
  };
  absl::StatusOr<SessionList> ListSessions(bool show_ended = false,
                                           const CallOptions& call = {}) const;

  // False if there was no such session (any more).
  absl::StatusOr<bool> DeleteSession(const std::string& id, const CallOptions& call = {}) const;

  // Runs steps of many sessions in one call. Each step has its own outcome, in order; the call's
  // status says whether it came through. Let Session::Prepare complete the steps: the call is
  // repeated after a lost reply only if every step carries a request_id.
  absl::StatusOr<std::vector<absl::StatusOr<v1::DecodeResponse>>> DecodeBatch(
      const v1::DecodeBatchRequest& request, const CallOptions& call = {}) const;

  // One step as it is: repeated after a lost reply only if it carries a request_id. Session::Decode
  // is what owners of a session want.
  absl::StatusOr<v1::DecodeResponse> Decode(const v1::DecodeRequest& request,
                                            const CallOptions& call = {}) const;

  // A stream of steps. Errors show in the outcomes of its steps.
  std::unique_ptr<DecodeStream> OpenStream() const;

 private:
  explicit Client(std::shared_ptr<internal::Connection> connection)
      : connection_(std::move(connection)) {}

  std::shared_ptr<internal::Connection> connection_;
};

}  // namespace attnserve::client

#endif  // ATTNSERVE_CLIENT_CLIENT_H_
