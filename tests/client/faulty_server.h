// A server that keeps the book of what it applied and fails on command.
#ifndef ATTNSERVE_TESTS_CLIENT_FAULTY_SERVER_H_
#define ATTNSERVE_TESTS_CLIENT_FAULTY_SERVER_H_

#include <grpcpp/server.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "attnserve/client/client.h"
#include "attnserve/v1/attention_service.grpc.pb.h"
#include "attnserve/v1/session_service.grpc.pb.h"

namespace attnserve::testing {

namespace v1 = attnserve::v1;

// What happens to one attempt of a call.
enum class Fault {
  kNone,
  kRefused,           // UNAVAILABLE as gRPC itself says it: no details, nothing applied
  kDraining,          // UNAVAILABLE of ours, with ErrorInfo; nothing applied
  kReplyLost,         // applied, then UNAVAILABLE without details
  kReplyLate,         // applied, then silent until the client gives up
  kQueueFull,         // RESOURCE_EXHAUSTED with RetryInfo of 80 ms
  kTooLarge,          // RESOURCE_EXHAUSTED without RetryInfo
  kPositionConflict,  // ABORTED with ErrorInfo, metadata length = 17
};
inline constexpr std::chrono::milliseconds kQueueFullDelay{80};

// Decode steps are one token each; one layer; sessions exist by name only.
class FaultyServer final : public v1::AttentionService::Service,
                           public v1::SessionService::Service {
 public:
  FaultyServer();
  ~FaultyServer() override;

  const std::string& address() const { return address_; }
  // A client with short waits.
  client::Client Connect(client::ClientOptions options = FastOptions()) const;
  static client::ClientOptions FastOptions();

  // What the next calls meet, in order; then kNone. `always` is met by every further call.
  void Script(std::deque<Fault> faults, Fault always = Fault::kNone);

  int calls() const;                             // attempts seen
  int applied() const;                           // steps applied
  std::vector<v1::DecodeRequest> steps() const;  // every attempt's step
  std::set<std::string> sessions() const;        // that live
  // How StreamDecode ends after that many steps were answered.
  void BreakStreamAfter(int answers, grpc::Status status);

  grpc::Status Decode(grpc::ServerContext*, const v1::DecodeRequest*, v1::DecodeResponse*) override;
  grpc::Status DecodeBatch(grpc::ServerContext*, const v1::DecodeBatchRequest*,
                           v1::DecodeBatchResponse*) override;
  grpc::Status Forward(grpc::ServerContext*, const v1::ForwardRequest*,
                       v1::ForwardResponse*) override;
  grpc::Status StreamDecode(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::StreamDecodeResponse, v1::StreamDecodeRequest>*) override;
  grpc::Status CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest*,
                             v1::CreateSessionResponse*) override;
  grpc::Status DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest*,
                             v1::DeleteSessionResponse*) override;

 private:
  // Takes the next fault; applies what `apply` does unless it forbids it; returns the outcome.
  template <typename Apply>
  grpc::Status Meet(grpc::ServerContext* context, Apply apply);
  void ApplyStep(const v1::DecodeRequest& step, v1::DecodeResponse* response);

  mutable std::mutex mutex_;
  std::deque<Fault> faults_;
  Fault always_ = Fault::kNone;
  int calls_ = 0;
  int applied_ = 0;
  std::map<std::string, int64_t> positions_;  // by request id
  std::vector<v1::DecodeRequest> steps_;
  std::set<std::string> sessions_;
  int stream_answers_ = -1;  // -1: all
  grpc::Status stream_status_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace attnserve::testing

#endif  // ATTNSERVE_TESTS_CLIENT_FAULTY_SERVER_H_
