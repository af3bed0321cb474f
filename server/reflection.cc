#include "server/reflection.h"

#include "grpc/health/v1/health.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"

namespace attnserve {

void EnableReflection() {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  // gRPC serves health without its descriptor; this one makes the linker keep ours.
  (void)grpc::health::v1::HealthCheckRequest::descriptor();
}

}  // namespace attnserve
