#include "attnserve/client/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "client/src/connection.h"
#include "client/src/step.h"

namespace attnserve::client {
namespace {

using internal::Connection;
using internal::Repeat;
using internal::TimePoint;

// gRPC's own reconnection pause starts at a second, which would outlast most of our repetitions.
constexpr int kFirstReconnectMs = 100;
constexpr int kLongestReconnectMs = 2000;
constexpr int kListPageSize = 1000;
constexpr std::chrono::seconds kConnectTimeout{5};

std::shared_ptr<::grpc::Channel> MakeChannel(const std::string& target,
                                             const ClientOptions& options) {
  ::grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_receive_bytes);
  arguments.SetMaxSendMessageSize(options.max_send_bytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestReconnectMs);
  return ::grpc::CreateCustomChannel(
      target,
      options.credentials != nullptr ? options.credentials : ::grpc::InsecureChannelCredentials(),
      arguments);
}

absl::Status WaitUntilReady(::grpc::Channel& channel, const std::string& target,
                            std::chrono::milliseconds wait_for_server) {
  const TimePoint start = std::chrono::system_clock::now();
  const TimePoint patience = start + wait_for_server;
  const TimePoint deadline = std::max(patience, start + kConnectTimeout);
  for (;;) {
    const grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
    const TimePoint now = std::chrono::system_clock::now();
    if ((state == GRPC_CHANNEL_TRANSIENT_FAILURE && now >= patience) || now >= deadline ||
        state == GRPC_CHANNEL_SHUTDOWN) {
      return absl::UnavailableError(absl::StrCat("no server answers at ", target));
    }
    const TimePoint until = now < patience ? std::min(deadline, patience) : deadline;
    channel.WaitForStateChange(state, until);
  }
}

}  // namespace

absl::StatusOr<Client> Client::Connect(const std::string& target, const ClientOptions& options) {
  std::shared_ptr<::grpc::Channel> channel = MakeChannel(target, options);
  if (absl::Status status = WaitUntilReady(*channel, target, options.wait_for_server);
      !status.ok()) {
    return status;
  }
  return FromChannel(std::move(channel), options);
}

Client Client::FromChannel(std::shared_ptr<::grpc::Channel> channel, const ClientOptions& options) {
  return Client(std::make_shared<Connection>(std::move(channel), options));
}

absl::StatusOr<std::vector<v1::Model>> Client::ListModels(const CallOptions& call) const {
  auto response = connection_->Call(*connection_->models, &v1::ModelService::Stub::ListModels,
                                    v1::ListModelsRequest(), call, Repeat::kSafeAndCheap);
  if (!response.ok()) return response.status();
  return std::vector<v1::Model>(response->models().begin(), response->models().end());
}

absl::StatusOr<v1::GetModelResponse> Client::GetModel(const std::string& name,
                                                      const CallOptions& call) const {
  v1::GetModelRequest request;
  request.set_name(name);
  return connection_->Call(*connection_->models, &v1::ModelService::Stub::GetModel, request, call,
                           Repeat::kSafeAndCheap);
}

absl::StatusOr<v1::GetServerInfoResponse> Client::GetServerInfo(const CallOptions& call) const {
  return connection_->Call(*connection_->models, &v1::ModelService::Stub::GetServerInfo,
                           v1::GetServerInfoRequest(), call, Repeat::kSafeAndCheap);
}

absl::StatusOr<v1::ForwardResponse> Client::Forward(const v1::ForwardRequest& request,
                                                    const CallOptions& call) const {
  return connection_->Call(*connection_->attention, &v1::AttentionService::Stub::Forward, request,
                           call, Repeat::kSafe);
}

absl::StatusOr<v1::AttendResponse> Client::Attend(const v1::AttendRequest& request,
                                                  const CallOptions& call) const {
  return connection_->Call(*connection_->attention, &v1::AttentionService::Stub::Attend, request,
                           call, Repeat::kSafe);
}

absl::StatusOr<Session> Client::CreateSession(v1::CreateSessionRequest request,
                                              const CallOptions& call) const {
  constexpr int kIdDigits = 32;
  const bool own_id = request.session_id().empty();
  if (own_id) request.set_session_id(internal::RandomHex(kIdDigits));
  const auto create = [&] {
    return connection_->Call(*connection_->sessions, &v1::SessionService::Stub::CreateSession,
                             request, call, own_id ? Repeat::kSafeAndCheap : Repeat::kNever);
  };
  absl::StatusOr<v1::CreateSessionResponse> created = create();
  if (own_id && absl::IsAlreadyExists(created.status())) {
    // Nobody else draws the same id: an attempt whose reply was lost made it.
    if (const auto deleted = DeleteSession(request.session_id(), call); !deleted.ok()) {
      return deleted.status();
    }
    created = create();
  }
  if (!created.ok()) return created.status();
  return Session(connection_, *std::move(created), /*owned=*/true);
}

absl::StatusOr<Session> Client::AttachSession(const std::string& id,
                                              const CallOptions& call) const {
  absl::StatusOr<v1::Session> state = GetSession(id, call);
  if (!state.ok()) return state.status();
  v1::CreateSessionResponse created;
  *created.mutable_session() = *std::move(state);
  return Session(connection_, std::move(created), /*owned=*/false);
}

absl::StatusOr<v1::Session> Client::GetSession(const std::string& id,
                                               const CallOptions& call) const {
  v1::GetSessionRequest request;
  request.set_session_id(id);
  auto response = connection_->Call(*connection_->sessions, &v1::SessionService::Stub::GetSession,
                                    request, call, Repeat::kSafeAndCheap);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_session());
}

absl::StatusOr<Client::SessionList> Client::ListSessions(bool show_ended,
                                                         const CallOptions& call) const {
  SessionList list;
  v1::ListSessionsRequest request;
  request.set_page_size(kListPageSize);
  request.set_show_ended(show_ended);
  for (;;) {
    auto page = connection_->Call(*connection_->sessions, &v1::SessionService::Stub::ListSessions,
                                  request, call, Repeat::kSafeAndCheap);
    if (!page.ok()) return page.status();
    list.sessions.insert(list.sessions.end(), page->sessions().begin(), page->sessions().end());
    list.ended.insert(list.ended.end(), page->ended().begin(), page->ended().end());
    if (page->next_page_token().empty()) return list;
    request.set_page_token(page->next_page_token());
  }
}

absl::StatusOr<bool> Client::DeleteSession(const std::string& id, const CallOptions& call) const {
  v1::DeleteSessionRequest request;
  request.set_session_id(id);
  const auto response =
      connection_->Call(*connection_->sessions, &v1::SessionService::Stub::DeleteSession, request,
                        call, Repeat::kSafeAndCheap);
  if (!response.ok()) return response.status();
  return response->existed();
}

absl::StatusOr<std::vector<absl::StatusOr<v1::DecodeResponse>>> Client::DecodeBatch(
    const v1::DecodeBatchRequest& request, const CallOptions& call) const {
  auto response =
      connection_->Call(*connection_->attention, &v1::AttentionService::Stub::DecodeBatch, request,
                        call, internal::RepeatOf(request));
  if (!response.ok()) return response.status();
  if (response->results_size() != request.steps_size()) {
    return absl::InternalError(absl::StrCat("the server answered ", response->results_size(),
                                            " of ", request.steps_size(), " steps"));
  }
  std::vector<absl::StatusOr<v1::DecodeResponse>> outcomes;
  outcomes.reserve(static_cast<size_t>(response->results_size()));
  for (v1::DecodeResult& result : *response->mutable_results()) {
    absl::Status status = FromRpcStatus(result.status());
    if (status.ok()) {
      outcomes.emplace_back(std::move(*result.mutable_response()));
    } else {
      outcomes.emplace_back(std::move(status));
    }
  }
  return outcomes;
}

absl::StatusOr<v1::DecodeResponse> Client::Decode(const v1::DecodeRequest& request,
                                                  const CallOptions& call) const {
  return connection_->Call(*connection_->attention, &v1::AttentionService::Stub::Decode, request,
                           call, internal::RepeatOf(request));
}

std::unique_ptr<DecodeStream> Client::OpenStream() const {
  return std::unique_ptr<DecodeStream>(new DecodeStream(connection_));
}

}  // namespace attnserve::client
