#include "client/src/connection.h"

#include <random>

namespace attnserve::client::internal {

Connection::Connection(std::shared_ptr<::grpc::Channel> the_channel,
                       const ClientOptions& the_options)
    : channel(std::move(the_channel)),
      options(the_options),
      attention(v1::AttentionService::NewStub(channel)),
      sessions(v1::SessionService::NewStub(channel)),
      models(v1::ModelService::NewStub(channel)) {}

std::string RandomHex(int count) {
  std::random_device entropy;
  std::string digits;
  for (int i = 0; i < count; ++i) digits.push_back("0123456789abcdef"[entropy() & 0xfu]);
  return digits;
}

}  // namespace attnserve::client::internal
