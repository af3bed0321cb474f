// AttentionService: decodes requests, hands them to the engine.
#ifndef ATTNSERVE_SERVER_ATTENTION_SERVICE_H_
#define ATTNSERVE_SERVER_ATTENTION_SERVICE_H_

#include "attnserve/v1/attention_service.grpc.pb.h"
#include "server/backend.h"
#include "server/stream_decode.h"

namespace attnserve {

// The contract is attention_service.proto. Thread-safe.
class AttentionService final : public attnserve::v1::AttentionService::CallbackService {
 public:
  // `backend` outlives the gRPC server.
  explicit AttentionService(const Backend* backend) : backend_(*backend) {}

  // Ends open streams once nothing is outstanding on them.
  void Drain() { streams_.Drain(); }

  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context,
                                    const attnserve::v1::ForwardRequest* request,
                                    attnserve::v1::ForwardResponse* response) override;
  grpc::ServerUnaryReactor* Attend(grpc::CallbackServerContext* context,
                                   const attnserve::v1::AttendRequest* request,
                                   attnserve::v1::AttendResponse* response) override;
  grpc::ServerUnaryReactor* Decode(grpc::CallbackServerContext* context,
                                   const attnserve::v1::DecodeRequest* request,
                                   attnserve::v1::DecodeResponse* response) override;
  grpc::ServerUnaryReactor* DecodeBatch(grpc::CallbackServerContext* context,
                                        const attnserve::v1::DecodeBatchRequest* request,
                                        attnserve::v1::DecodeBatchResponse* response) override;
  grpc::ServerBidiReactor<attnserve::v1::StreamDecodeRequest, attnserve::v1::StreamDecodeResponse>*
  StreamDecode(grpc::CallbackServerContext* context) override;

 private:
  const Backend& backend_;
  OpenStreams streams_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_ATTENTION_SERVICE_H_
