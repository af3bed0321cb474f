#include "tests/rpc/standard_services.h"

namespace attnserve::testing {
namespace {

// Waits for the only operation in flight.
bool NextTag(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue->Next(&tag, &ok) && ok;
}

}  // namespace

std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  grpc::TemplatedGenericStub<HealthCheckRequest, HealthCheckResponse> stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  HealthCheckRequest request;
  request.set_service(service);
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  HealthCheckResponse response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  NextTag(&queue);
  if (!status.ok()) return std::to_string(status.error_code());
  return HealthCheckResponse::ServingStatus_Name(response.status());
}

HealthWatch::HealthWatch(const std::shared_ptr<grpc::Channel>& channel, const std::string& service)
    : stub_(channel) {
  call_ = stub_.PrepareCall(&context_, "/grpc.health.v1.Health/Watch", &queue_);
  call_->StartCall(nullptr);
  NextTag(&queue_);
  HealthCheckRequest request;
  request.set_service(service);
  call_->WriteLast(request, grpc::WriteOptions(), nullptr);
  NextTag(&queue_);
}

HealthWatch::~HealthWatch() {
  context_.TryCancel();
  grpc::Status status;
  call_->Finish(&status, nullptr);
  NextTag(&queue_);
}

std::string HealthWatch::Next() {
  HealthCheckResponse response;
  call_->Read(&response, nullptr);
  if (!NextTag(&queue_)) return "";
  return HealthCheckResponse::ServingStatus_Name(response.status());
}

std::set<std::string> ReflectedServices(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::TemplatedGenericStub<ReflectionRequest, ReflectionResponse> stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  NextTag(&queue);
  ReflectionRequest request;
  request.set_list_services("*");
  call->WriteLast(request, grpc::WriteOptions(), nullptr);
  NextTag(&queue);
  ReflectionResponse response;
  call->Read(&response, nullptr);
  NextTag(&queue);
  grpc::Status status;
  call->Finish(&status, nullptr);
  NextTag(&queue);
  std::set<std::string> names;
  for (const auto& service : response.list_services_response().service()) {
    names.insert(service.name());
  }
  return names;
}

}  // namespace attnserve::testing
