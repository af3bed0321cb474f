#include "attnserve/client/session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/src/connection.h"
#include "client/src/step.h"

namespace attnserve::client {
namespace {

using internal::Connection;
using internal::Repeat;

// Enough for a server that lives; the destructor must not wait long for one that does not.
constexpr std::chrono::milliseconds kFarewellTimeout{2000};

}  // namespace

Session::Session(std::shared_ptr<Connection> connection, v1::CreateSessionResponse created,
                 bool owned)
    : connection_(std::move(connection)),
      id_(created.session().session_id()),
      created_(std::move(created)),
      request_prefix_(internal::RandomHex(16)),
      owned_(owned) {
  for (const v1::SessionLayer& layer : created_.session().layers()) {
    lengths_.push_back(layer.length());
  }
}

Session::Session(Session&& other) noexcept { *this = std::move(other); }

Session& Session::operator=(Session&& other) noexcept {
  std::swap(connection_, other.connection_);
  std::swap(id_, other.id_);
  created_.Swap(&other.created_);
  std::swap(lengths_, other.lengths_);
  std::swap(request_prefix_, other.request_prefix_);
  std::swap(request_count_, other.request_count_);
  std::swap(owned_, other.owned_);
  return *this;
}

Session::~Session() {
  if (connection_ == nullptr || !owned_) return;
  ::grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kFarewellTimeout);
  v1::DeleteSessionRequest request;
  request.set_session_id(id_);
  v1::DeleteSessionResponse response;
  connection_->sessions->DeleteSession(&context, request, &response);
}

int64_t Session::ExpectedPosition(const v1::DecodeRequest& step) const {
  const auto layer = static_cast<size_t>(step.has_layer() ? step.layer() : 0);
  return layer < lengths_.size() ? lengths_[layer] : 0;
}

void Session::SetLength(const v1::DecodeRequest& step, int64_t length) {
  if (!step.has_layer()) {
    std::fill(lengths_.begin(), lengths_.end(), length);
    return;
  }
  const auto layer = static_cast<size_t>(step.layer());
  if (layer < lengths_.size()) lengths_[layer] = length;
}

void Session::Prepare(v1::DecodeRequest* step) {
  step->set_session_id(id_);
  if (!step->has_expected_position()) step->set_expected_position(ExpectedPosition(*step));
  if (step->request_id().empty()) {
    step->set_request_id(absl::StrCat(request_prefix_, "-", ++request_count_));
  }
  SetLength(*step, step->expected_position() + internal::NewTokens(*step));
}

void Session::Settle(const v1::DecodeRequest& step,
                     const absl::StatusOr<v1::DecodeResponse>& outcome) {
  if (outcome.ok()) {
    SetLength(step, std::max(ExpectedPosition(step), outcome->length()));
  } else {
    SetLength(step, std::min(ExpectedPosition(step), step.expected_position()));
  }
}

absl::StatusOr<v1::DecodeResponse> Session::Decode(v1::DecodeRequest step,
                                                   const CallOptions& call) {
  const std::vector<int64_t> before = lengths_;
  Prepare(&step);
  absl::StatusOr<v1::DecodeResponse> response =
      connection_->Call(*connection_->attention, &v1::AttentionService::Stub::Decode, step, call,
                        internal::RepeatOf(step));
  if (response.ok()) {
    SetLength(step, response->length());
  } else {
    lengths_ = before;
  }
  return response;
}

absl::StatusOr<v1::Session> Session::Adopt(absl::StatusOr<v1::Session> state) {
  if (!state.ok()) return state;
  lengths_.clear();
  for (const v1::SessionLayer& layer : state->layers()) lengths_.push_back(layer.length());
  return state;
}

absl::StatusOr<v1::Session> Session::GetState(const CallOptions& call) {
  v1::GetSessionRequest request;
  request.set_session_id(id_);
  auto response = connection_->Call(*connection_->sessions, &v1::SessionService::Stub::GetSession,
                                    request, call, Repeat::kSafeAndCheap);
  if (!response.ok()) return response.status();
  return Adopt(std::move(*response->mutable_session()));
}

absl::StatusOr<v1::Session> Session::ResetCache(const std::vector<int32_t>& layers,
                                                const CallOptions& call) {
  v1::ResetCacheRequest request;
  request.set_session_id(id_);
  request.mutable_layers()->Add(layers.begin(), layers.end());
  auto response = connection_->Call(*connection_->sessions, &v1::SessionService::Stub::ResetCache,
                                    request, call, Repeat::kSafeAndCheap);
  if (!response.ok()) return response.status();
  return Adopt(std::move(*response->mutable_session()));
}

absl::StatusOr<v1::Session> Session::Truncate(int64_t length, const CallOptions& call) {
  v1::TruncateSessionRequest request;
  request.set_session_id(id_);
  request.set_length(length);
  auto response =
      connection_->Call(*connection_->sessions, &v1::SessionService::Stub::TruncateSession, request,
                        call, Repeat::kSafeAndCheap);
  if (!response.ok()) return response.status();
  return Adopt(std::move(*response->mutable_session()));
}

absl::StatusOr<bool> Session::Delete(const CallOptions& call) {
  v1::DeleteSessionRequest request;
  request.set_session_id(id_);
  const auto response =
      connection_->Call(*connection_->sessions, &v1::SessionService::Stub::DeleteSession, request,
                        call, Repeat::kSafeAndCheap);
  if (!response.ok()) return response.status();
  owned_ = false;
  return response->existed();
}

std::string Session::Detach() {
  owned_ = false;
  return id_;
}

}  // namespace attnserve::client
