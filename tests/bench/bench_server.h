// A real server on a real socket with one model of one layer, and an echo of the same messages.
#ifndef ATTNSERVE_TESTS_BENCH_BENCH_SERVER_H_
#define ATTNSERVE_TESTS_BENCH_BENCH_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "attnserve/client/client.h"
#include "attnserve/v1/attention_service.grpc.pb.h"
#include "grpcpp/server.h"
#include "server/server.h"

namespace attnserve::bench {

namespace v1 = attnserve::v1;

// A causal self-attention layer: d = width, heads of width / heads.
struct LayerShape {
  int64_t width = 64;
  int64_t heads = 4;
};

class BenchServer {
 public:
  BenchServer(const LayerShape& shape, int threads);
  ~BenchServer();

  client::Client& client() { return *client_; }
  std::shared_ptr<grpc::Channel> channel() const { return channel_; }
  client::Session NewSession();
  // A step of `tokens` tokens.
  v1::DecodeRequest Step(int64_t tokens) const;

 private:
  LayerShape shape_;
  std::string folder_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<client::Client> client_;
};

// Answers Decode and StreamDecode with the step's own x and computes nothing: what the transport
// and the messages cost.
class EchoServer {
 public:
  EchoServer();
  ~EchoServer();

  std::shared_ptr<grpc::Channel> channel() const { return channel_; }

 private:
  class Service;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace attnserve::bench

#endif  // ATTNSERVE_TESTS_BENCH_BENCH_SERVER_H_
