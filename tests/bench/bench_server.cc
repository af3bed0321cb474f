#include "tests/bench/bench_server.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "attnserve/client/tensor.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "tests/bench/check.h"
#include "tests/bench/core_sequences.h"

namespace attnserve::bench {
namespace {

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

BenchServer::BenchServer(const LayerShape& shape, int threads) : shape_(shape) {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "attnserve_bench_XXXXXX").string();
  folder_ = mkdtemp(pattern.data());
  std::ofstream(folder_ + "/model.textproto") << absl::StrFormat(
      "layers { kind: LAYER_KIND_SELF_ATTENTION input_size: %d head_count: %d "
      "output_projection: true attention { causal: true rotary { pairing: PAIRING_HALF_SPLIT } } } "
      "seed: 1\n",
      shape.width, shape.heads);
  ServerOptions options;
  options.listen = {"127.0.0.1:0"};
  options.http = "";
  options.models = {{"bench", folder_}};
  options.threads = threads;
  options.kv_budget_bytes = int64_t{8} << 30;
  options.max_message_bytes = int64_t{512} << 20;
  SetLogLevel(LogLevel::kError);
  server_ = Check(Server::Start(options));
  Check(server_->Load());
  channel_ = Connect(server_->grpc_addresses()[0]);
  client_ = std::make_unique<client::Client>(client::Client::FromChannel(channel_));
}

BenchServer::~BenchServer() { std::filesystem::remove_all(folder_); }

client::Session BenchServer::NewSession() {
  v1::CreateSessionRequest request;
  request.set_model("bench");
  return Check(client_->CreateSession(request));
}

v1::DecodeRequest BenchServer::Step(int64_t tokens) const {
  v1::DecodeRequest step;
  step.set_layer(0);
  *step.mutable_x() =
      client::F32Tensor(RandomFloats(tokens * shape_.width, 3), {1, tokens, shape_.width});
  return step;
}

class EchoServer::Service final : public v1::AttentionService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Decode(grpc::CallbackServerContext* context,
                                   const v1::DecodeRequest* request,
                                   v1::DecodeResponse* response) override {
    *response->mutable_output() = request->x();
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerBidiReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse>* StreamDecode(
      grpc::CallbackServerContext*) override {
    return new Stream;
  }

 private:
  class Stream final
      : public grpc::ServerBidiReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse> {
   public:
    Stream() { StartRead(&request_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      response_.set_correlation_id(request_.correlation_id());
      *response_.mutable_result()->mutable_response()->mutable_output() = request_.step().x();
      StartWrite(&response_);
    }
    void OnWriteDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      StartRead(&request_);
    }
    void OnDone() override { delete this; }

   private:
    v1::StreamDecodeRequest request_;
    v1::StreamDecodeResponse response_;
  };
};

EchoServer::EchoServer() : service_(std::make_unique<Service>()) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  channel_ = Connect("127.0.0.1:" + std::to_string(port));
}

EchoServer::~EchoServer() = default;

}  // namespace attnserve::bench
