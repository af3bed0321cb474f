// Clients of the standard services.
#ifndef ATTNSERVE_TESTS_RPC_STANDARD_SERVICES_H_
#define ATTNSERVE_TESTS_RPC_STANDARD_SERVICES_H_

#include <memory>
#include <set>
#include <string>

#include "grpc/health/v1/health.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "reflection.pb.h"

namespace attnserve::testing {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;

// grpc.health.v1.Health/Check: "SERVING", "NOT_SERVING", or the code of the error.
std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);

// grpc.health.v1.Health/Watch: one stream of states.
class HealthWatch {
 public:
  HealthWatch(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);
  ~HealthWatch();
  // Waits for the next state; "" at the end of the stream.
  std::string Next();

 private:
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::TemplatedGenericStub<HealthCheckRequest, HealthCheckResponse> stub_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<HealthCheckRequest, HealthCheckResponse>> call_;
};

// Names that server reflection lists.
std::set<std::string> ReflectedServices(const std::shared_ptr<grpc::Channel>& channel);

}  // namespace attnserve::testing

#endif  // ATTNSERVE_TESTS_RPC_STANDARD_SERVICES_H_
