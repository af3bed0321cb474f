// Unary calls: what every handler does, once.
//
// A reactor deletes itself after its call; Finish is its last use of itself. The engine may end a
// call before the handler has returned: gRPC keeps the status until the reactor is bound.
#ifndef ATTNSERVE_SERVER_REACTORS_H_
#define ATTNSERVE_SERVER_REACTORS_H_

#include <exception>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "lib/base/errors.h"
#include "lib/engine/call.h"
#include "server/backend.h"
#include "server/calls.h"
#include "server/rpc_scope.h"
#include "server/status.h"
#include "server/wire.h"

namespace attnserve {

// Answers at once with what `body` returns, which takes no arguments and must not block. STARTING
// before the backend is open.
template <class Body>
grpc::ServerUnaryReactor* Answer(Rpc rpc, const Backend& backend,
                                 grpc::CallbackServerContext* context, Body body) {
  RpcScope scope(rpc, &backend.metrics());
  absl::Status status = backend.CheckOpen();
  if (status.ok()) {
    try {  // gRPC would turn an exception into UNIMPLEMENTED
      status = body();
    } catch (const std::exception& e) {
      status = KernelFailure(e.what());
    }
  }
  if (!status.ok()) CountRejected(status, &backend.metrics());
  scope.End(status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// Puts the output and stages of a call into its reply, set before the call is submitted. `Response`
// has `output` and `stages`.
template <class Response>
class ReplySink : public CallSink {
 public:
  void* Output(DType dtype, absl::Span<const int64_t> shape) override {
    return encoder_.Allocate(dtype, shape, response_->mutable_output());
  }
  void* StageOutput(Stage stage, int32_t layer, DType dtype,
                    absl::Span<const int64_t> shape) override {
    auto* output = response_->add_stages();
    output->set_stage(StageToProto(stage));
    output->set_layer(layer);
    return encoder_.Allocate(dtype, shape, output->mutable_tensor());
  }

 protected:
  void set_response(Response* response) { response_ = response; }
  Response* response() { return response_; }
  TensorEncoder& encoder() { return encoder_; }

 private:
  Response* response_ = nullptr;
  TensorEncoder encoder_;
};

// The life of a unary call that the engine works on.
class EngineReactor : public grpc::ServerUnaryReactor {
 protected:
  EngineReactor(Rpc rpc, const Backend& backend)
      : backend_(backend), scope_(rpc, &backend.metrics()) {}

  const Backend& backend() const { return backend_; }

  // The call's last use of this object.
  void End(const absl::Status& status) {
    scope_.End(status);
    Finish(ToGrpcStatus(status));
  }
  // The same for a call that the engine never saw.
  void Refuse(const absl::Status& status) {
    CountRejected(status, &backend_.metrics());
    End(status);
  }
  void OnDone() override { delete this; }

 private:
  const Backend& backend_;
  RpcScope scope_;
};

// Forward and Attend.
template <class CallT, class Request, class Response>
class TensorReactor : public EngineReactor, public ReplySink<Response> {
 public:
  TensorReactor(Rpc rpc, const Backend& backend, Response* response) : EngineReactor(rpc, backend) {
    this->set_response(response);
  }

  void Start(const grpc::CallbackServerContext& context, const Request& request) {
    absl::Status status = backend().CheckOpen();
    if (status.ok()) status = FillCall(request, backend().models(), &tensors_, &call_);
    if (!status.ok()) return Refuse(status);
    this->encoder().set_uses_values(tensors_.uses_values());
    call_.sink = this;
    call_.deadline = SteadyDeadline(context);
    backend().engine().Submit(&call_);
  }

  void Done(const absl::Status& status) override {
    this->encoder().Finish();
    End(status);
  }

 private:
  void OnCancel() override { call_.cancelled.store(true, std::memory_order_relaxed); }

  TensorDecoder tensors_;
  CallT call_;
};

// ResetCache, TruncateSession, DeleteSession.
template <class Request, class Response>
class SessionReactor final : public EngineReactor, public CallSink {
 public:
  SessionReactor(Rpc rpc, const Backend& backend, Response* response)
      : EngineReactor(rpc, backend), response_(response) {}

  void Start(const grpc::CallbackServerContext& context, const Request& request) {
    absl::Status status = backend().CheckOpen();
    if (status.ok()) status = FillCall(request, &call_);
    if (!status.ok()) return Refuse(status);
    call_.sink = this;
    call_.deadline = SteadyDeadline(context);
    backend().engine().Submit(&call_);
  }

  void Done(const absl::Status& status) override {
    if (status.ok()) FillReply(call_, response_);
    End(status);
  }

 private:
  void* Output(DType, absl::Span<const int64_t>) override { return nullptr; }
  void* StageOutput(Stage, int32_t, DType, absl::Span<const int64_t>) override { return nullptr; }
  void OnCancel() override { call_.cancelled.store(true, std::memory_order_relaxed); }

  Response* response_;
  SessionCall call_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_REACTORS_H_
