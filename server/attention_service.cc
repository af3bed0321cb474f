#include "server/attention_service.h"

#include "server/decode_batch.h"
#include "server/decode_step.h"
#include "server/reactors.h"

namespace attnserve {
namespace {

using ForwardReactor = TensorReactor<ForwardCall, v1::ForwardRequest, v1::ForwardResponse>;

class AttendReactor final
    : public TensorReactor<AttendCall, v1::AttendRequest, v1::AttendResponse> {
 public:
  AttendReactor(const Backend& backend, v1::AttendResponse* response)
      : TensorReactor(Rpc::kAttend, backend, response) {}

  void* Present(bool key, DType dtype, absl::Span<const int64_t> shape) override {
    v1::Tensor* tensor =
        key ? response()->mutable_present_key() : response()->mutable_present_value();
    return encoder().Allocate(dtype, shape, tensor);
  }
};

class DecodeReactor final : public EngineReactor, public DecodeStep {
 public:
  explicit DecodeReactor(const Backend& backend) : EngineReactor(Rpc::kDecode, backend) {}

  void Start(const grpc::CallbackServerContext& context, const v1::DecodeRequest& request,
             v1::DecodeResponse* response) {
    absl::Status status = backend().CheckOpen();
    if (status.ok()) status = Fill(request, response, SteadyDeadline(context));
    if (!status.ok()) return Refuse(status);
    call().may_run_in_submit = true;
    backend().engine().Submit(&call());
  }

 private:
  void Ended(const absl::Status& status) override { End(status); }
  void OnCancel() override { call().cancelled.store(true, std::memory_order_relaxed); }
};

}  // namespace

grpc::ServerUnaryReactor* AttentionService::Forward(grpc::CallbackServerContext* context,
                                                    const v1::ForwardRequest* request,
                                                    v1::ForwardResponse* response) {
  auto* reactor = new ForwardReactor(Rpc::kForward, backend_, response);
  reactor->Start(*context, *request);
  return reactor;
}

grpc::ServerUnaryReactor* AttentionService::Attend(grpc::CallbackServerContext* context,
                                                   const v1::AttendRequest* request,
                                                   v1::AttendResponse* response) {
  auto* reactor = new AttendReactor(backend_, response);
  reactor->Start(*context, *request);
  return reactor;
}

grpc::ServerUnaryReactor* AttentionService::Decode(grpc::CallbackServerContext* context,
                                                   const v1::DecodeRequest* request,
                                                   v1::DecodeResponse* response) {
  auto* reactor = new DecodeReactor(backend_);
  reactor->Start(*context, *request, response);
  return reactor;
}

grpc::ServerUnaryReactor* AttentionService::DecodeBatch(grpc::CallbackServerContext* context,
                                                        const v1::DecodeBatchRequest* request,
                                                        v1::DecodeBatchResponse* response) {
  auto* reactor = new DecodeBatchReactor(backend_, response);
  reactor->Start(*context, *request);
  return reactor;
}

grpc::ServerBidiReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse>*
AttentionService::StreamDecode(grpc::CallbackServerContext* context) {
  auto* reactor = new StreamDecodeReactor(backend_, &streams_, *context);
  reactor->Start();
  return reactor;
}

}  // namespace attnserve
