#include "tests/client/faulty_server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace attnserve::testing {
namespace {

using std::chrono::milliseconds;

grpc::Status Refusal(grpc::StatusCode code, const std::string& reason, milliseconds retry) {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message(reason);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("attnserve");
  (*info.mutable_metadata())["length"] = "17";
  status.add_details()->PackFrom(info);
  if (retry.count() > 0) {
    google::rpc::RetryInfo delay;
    delay.mutable_retry_delay()->set_nanos(static_cast<int32_t>(retry.count() * 1000000));
    status.add_details()->PackFrom(delay);
  }
  return grpc::Status(code, reason, status.SerializeAsString());
}

}  // namespace

FaultyServer::FaultyServer() {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(static_cast<v1::AttentionService::Service*>(this));
  builder.RegisterService(static_cast<v1::SessionService::Service*>(this));
  server_ = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
}

FaultyServer::~FaultyServer() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

client::ClientOptions FaultyServer::FastOptions() {
  client::ClientOptions options;
  options.timeout = milliseconds(5000);
  options.retry.initial_backoff = milliseconds(5);
  options.retry.max_backoff = milliseconds(20);
  options.retry.attempt_timeout = milliseconds(1000);
  return options;
}

client::Client FaultyServer::Connect(client::ClientOptions options) const {
  return client::Client::Connect(address_, options).value();
}

void FaultyServer::Script(std::deque<Fault> faults, Fault always) {
  const std::lock_guard<std::mutex> lock(mutex_);
  faults_ = std::move(faults);
  always_ = always;
}

int FaultyServer::calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

int FaultyServer::applied() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return applied_;
}

std::vector<v1::DecodeRequest> FaultyServer::steps() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return steps_;
}

std::set<std::string> FaultyServer::sessions() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return sessions_;
}

void FaultyServer::BreakStreamAfter(int answers, grpc::Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stream_answers_ = answers;
  stream_status_ = std::move(status);
}

template <typename Apply>
grpc::Status FaultyServer::Meet(grpc::ServerContext* context, Apply apply) {
  Fault fault = Fault::kNone;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++calls_;
    fault = faults_.empty() ? always_ : faults_.front();
    if (!faults_.empty()) faults_.pop_front();
  }
  switch (fault) {
    case Fault::kRefused:
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused");
    case Fault::kDraining:
      return Refusal(grpc::StatusCode::UNAVAILABLE, "DRAINING", milliseconds(0));
    case Fault::kQueueFull:
      return Refusal(grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL", kQueueFullDelay);
    case Fault::kTooLarge:
      return Refusal(grpc::StatusCode::RESOURCE_EXHAUSTED, "RESPONSE_TOO_LARGE", milliseconds(0));
    case Fault::kPositionConflict:
      return Refusal(grpc::StatusCode::ABORTED, "POSITION_CONFLICT", milliseconds(0));
    default:
      break;
  }
  const grpc::Status status = apply();
  if (fault == Fault::kReplyLost) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost");
  while (fault == Fault::kReplyLate && !context->IsCancelled()) {
    std::this_thread::sleep_for(milliseconds(2));
  }
  return status;
}

void FaultyServer::ApplyStep(const v1::DecodeRequest& step, v1::DecodeResponse* response) {
  const std::lock_guard<std::mutex> lock(mutex_);
  steps_.push_back(step);
  const auto known = positions_.find(step.request_id());
  const bool replayed = !step.request_id().empty() && known != positions_.end();
  const int64_t position = replayed ? known->second : applied_++;
  positions_[step.request_id()] = position;
  response->set_position(position);
  response->set_length(position + 1);
  response->set_replayed(replayed);
}

grpc::Status FaultyServer::Decode(grpc::ServerContext* context, const v1::DecodeRequest* step,
                                  v1::DecodeResponse* response) {
  return Meet(context, [&] {
    ApplyStep(*step, response);
    return grpc::Status::OK;
  });
}

grpc::Status FaultyServer::DecodeBatch(grpc::ServerContext* context,
                                       const v1::DecodeBatchRequest* request,
                                       v1::DecodeBatchResponse* response) {
  return Meet(context, [&] {
    for (const v1::DecodeRequest& step : request->steps()) {
      ApplyStep(step, response->add_results()->mutable_response());
    }
    return grpc::Status::OK;
  });
}

grpc::Status FaultyServer::Forward(grpc::ServerContext* context, const v1::ForwardRequest*,
                                   v1::ForwardResponse*) {
  return Meet(context, [] { return grpc::Status::OK; });
}

grpc::Status FaultyServer::StreamDecode(
    grpc::ServerContext*,
    grpc::ServerReaderWriter<v1::StreamDecodeResponse, v1::StreamDecodeRequest>* stream) {
  v1::StreamDecodeRequest request;
  for (int answers = 0;; ++answers) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (answers == stream_answers_) return stream_status_;
    }
    if (!stream->Read(&request)) return grpc::Status::OK;
    v1::StreamDecodeResponse reply;
    reply.set_correlation_id(request.correlation_id());
    ApplyStep(request.step(), reply.mutable_result()->mutable_response());
    stream->Write(reply);
  }
}

grpc::Status FaultyServer::CreateSession(grpc::ServerContext* context,
                                         const v1::CreateSessionRequest* request,
                                         v1::CreateSessionResponse* response) {
  return Meet(context, [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!sessions_.insert(request->session_id()).second) {
      return Refusal(grpc::StatusCode::ALREADY_EXISTS, "SESSION_EXISTS", milliseconds(0));
    }
    response->mutable_session()->set_session_id(request->session_id());
    response->mutable_session()->add_layers();
    return grpc::Status::OK;
  });
}

grpc::Status FaultyServer::DeleteSession(grpc::ServerContext*,
                                         const v1::DeleteSessionRequest* request,
                                         v1::DeleteSessionResponse* response) {
  const std::lock_guard<std::mutex> lock(mutex_);
  response->set_existed(sessions_.erase(request->session_id()) > 0);
  return grpc::Status::OK;
}

}  // namespace attnserve::testing
