#include "tests/rpc/test_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/rpc/error_details.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"

namespace attnserve::testing {
namespace {

constexpr char kTinyLayer[] = R"(
  layers {
    kind: LAYER_KIND_SELF_ATTENTION input_size: 16 head_count: 4 kv_head_count: 2
    output_projection: true
    attention { causal: true rotary { pairing: PAIRING_HALF_SPLIT } }
  }
)";

constexpr char kCrossModel[] = R"(
  layers {
    kind: LAYER_KIND_CROSS_ATTENTION input_size: 8 context_size: 6 head_count: 2
    output_projection: true
  }
  seed: 7
)";

std::string TinyModel() {
  return absl::StrCat(kTinyLayer, kTinyLayer, "max_tokens: ", kTinyMaxTokens, " seed: 1\n");
}

RpcError FromDetails(int code, const std::string& message, const google::rpc::Status& rich) {
  RpcError error;
  error.code = code;
  error.message = message;
  for (const auto& any : rich.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad;
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&info)) {
      EXPECT_EQ(info.domain(), "attnserve");
      error.reason = info.reason();
      error.metadata.insert(info.metadata().begin(), info.metadata().end());
    } else if (any.UnpackTo(&bad)) {
      EXPECT_EQ(bad.field_violations_size(), 1);
      error.field = bad.field_violations(0).field();
      EXPECT_FALSE(bad.field_violations(0).description().empty());
    } else if (any.UnpackTo(&retry)) {
      error.retry_seconds =
          static_cast<double>(retry.retry_delay().seconds()) + retry.retry_delay().nanos() * 1e-9;
    } else {
      ADD_FAILURE() << "unknown detail " << any.type_url();
    }
  }
  return error;
}

const char* CodeName(int code) {
  static const std::map<int, const char*> kNames = {
      {grpc::OK, "OK"},
      {grpc::CANCELLED, "CANCELLED"},
      {grpc::INVALID_ARGUMENT, "INVALID_ARGUMENT"},
      {grpc::DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"},
      {grpc::NOT_FOUND, "NOT_FOUND"},
      {grpc::ALREADY_EXISTS, "ALREADY_EXISTS"},
      {grpc::RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED"},
      {grpc::FAILED_PRECONDITION, "FAILED_PRECONDITION"},
      {grpc::ABORTED, "ABORTED"},
      {grpc::OUT_OF_RANGE, "OUT_OF_RANGE"},
      {grpc::INTERNAL, "INTERNAL"},
      {grpc::UNAVAILABLE, "UNAVAILABLE"},
  };
  const auto it = kNames.find(code);
  return it == kNames.end() ? "?" : it->second;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "attnserve_XXXXXX").string();
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

std::vector<ModelSource> WriteTestModels(const std::string& folder) {
  std::vector<ModelSource> sources;
  for (const auto& [name, text] :
       {std::pair<std::string, std::string>{"tiny", TinyModel()}, {"cross", kCrossModel}}) {
    std::filesystem::create_directory(folder + "/" + name);
    std::ofstream(folder + "/" + name + "/model.textproto") << text;
    sources.push_back({name, folder + "/" + name});
  }
  return sources;
}

TestServer::TestServer(const std::function<void(ServerOptions*)>& change, bool load) {
  ServerOptions options;
  options.listen = {"127.0.0.1:0"};
  options.http = "127.0.0.1:0";
  options.models = WriteTestModels(folder_.path());
  options.threads = 2;
  options.kv_budget_bytes = int64_t{64} << 20;
  if (change != nullptr) change(&options);
  SetLogLevel(LogLevel::kError);
  auto server = Server::Start(options);
  if (!server.ok()) {
    ADD_FAILURE() << server.status();
    std::abort();
  }
  server_ = *std::move(server);
  if (load) {
    const absl::Status status = server_->Load();
    EXPECT_TRUE(status.ok()) << status;
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_ = grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
  attention_ = v1::AttentionService::NewStub(channel_);
  sessions_ = v1::SessionService::NewStub(channel_);
  models_ = v1::ModelService::NewStub(channel_);
}

TestServer::~TestServer() = default;

std::string TestServer::TinySession() {
  v1::CreateSessionRequest request;
  request.set_model("tiny");
  v1::CreateSessionResponse response;
  grpc::ClientContext context;
  const grpc::Status status = sessions_->CreateSession(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.session().session_id();
}

std::string TestServer::CoreSession() {
  v1::CreateSessionRequest request;
  v1::LayerSpec* layer = request.mutable_core()->add_layers();
  layer->set_kind(v1::LAYER_KIND_CORE_ATTENTION);
  layer->set_head_count(4);
  layer->set_kv_head_count(2);
  layer->set_key_head_size(8);
  layer->mutable_attention()->set_causal(true);
  v1::CreateSessionResponse response;
  grpc::ClientContext context;
  const grpc::Status status = sessions_->CreateSession(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.session().session_id();
}

std::string TestServer::Metrics() const { return Http(server_->http_address(), "GET", "/metrics"); }

double TestServer::Metric(const std::string& series) const {
  for (const auto& line : absl::StrSplit(Metrics(), '\n')) {
    const std::string text(line);
    double value = 0;
    if (text.compare(0, series.size() + 1, series + " ") == 0 &&
        absl::SimpleAtod(text.substr(series.size() + 1), &value)) {
      return value;
    }
  }
  return -1;
}

RpcError ErrorOf(const grpc::Status& status) {
  google::rpc::Status rich;
  EXPECT_TRUE(rich.ParseFromString(status.error_details()));
  if (!status.error_details().empty()) {
    EXPECT_EQ(rich.code(), status.error_code());
    EXPECT_EQ(rich.message(), status.error_message());
  }
  return FromDetails(status.error_code(), status.error_message(), rich);
}

RpcError ErrorOf(const google::rpc::Status& status) {
  return FromDetails(status.code(), status.message(), status);
}

template <class Status>
std::string Summary(const Status& status) {
  const RpcError error = ErrorOf(status);
  std::string text = CodeName(error.code);
  if (!error.reason.empty()) absl::StrAppend(&text, " ", error.reason);
  if (!error.field.empty()) absl::StrAppend(&text, " ", error.field);
  return text;
}
template std::string Summary(const grpc::Status& status);
template std::string Summary(const google::rpc::Status& status);

v1::Tensor FloatTensor(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  tensor.mutable_shape()->Assign(shape.begin(), shape.end());
  tensor.set_data(values.data(), values.size() * sizeof(float));
  return tensor;
}

v1::Tensor RandomTensor(const std::vector<int64_t>& shape, uint32_t seed) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> values(static_cast<size_t>(count));
  uint32_t state = seed * 2654435761u + 12345u;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes' generator
    value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
  return FloatTensor(shape, values);
}

v1::Tensor BoolTensor(const std::vector<int64_t>& shape, const std::string& bytes) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_BOOL);
  tensor.mutable_shape()->Assign(shape.begin(), shape.end());
  tensor.set_data(bytes);
  return tensor;
}

v1::Tensor Int64Tensor(const std::vector<int64_t>& shape, const std::vector<int64_t>& values) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_I64);
  tensor.mutable_shape()->Assign(shape.begin(), shape.end());
  tensor.set_data(values.data(), values.size() * sizeof(int64_t));
  return tensor;
}

std::vector<float> Floats(const v1::Tensor& tensor) {
  std::vector<float> values(tensor.data().size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), tensor.data().data(), tensor.data().size());
  return values;
}

v1::DecodeRequest TinyStep(const std::string& session_id, int64_t tokens, uint32_t seed) {
  v1::DecodeRequest request;
  request.set_session_id(session_id);
  *request.mutable_x() = RandomTensor({1, tokens, kTinyWidth}, seed);
  return request;
}

v1::DecodeRequest CoreStep(const std::string& session_id, int64_t tokens, uint32_t seed) {
  v1::DecodeRequest request;
  request.set_session_id(session_id);
  *request.mutable_q() = RandomTensor({1, 4, tokens, 8}, seed);
  *request.mutable_k() = RandomTensor({1, 2, tokens, 8}, seed + 1);
  *request.mutable_v() = RandomTensor({1, 2, tokens, 8}, seed + 2);
  return request;
}

v1::DecodeResponse Decode(TestServer& server, const v1::DecodeRequest& request) {
  v1::DecodeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.attention().Decode(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

v1::AttendRequest LongAttend() {
  v1::AttendRequest request;
  *request.mutable_q() = RandomTensor({1, 8, 10000, 16}, 1);
  *request.mutable_k() = RandomTensor({1, 8, 10000, 16}, 2);
  *request.mutable_v() = RandomTensor({1, 8, 10000, 16}, 3);
  return request;
}

bool WaitFor(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

HttpConnection::HttpConnection(const std::string& address)
    : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  target.sin_port = htons(static_cast<uint16_t>(port));
  connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&target), sizeof target) == 0;
}

HttpConnection::~HttpConnection() { close(socket_); }

std::string HttpConnection::Ask(const std::string& method, const std::string& path) {
  std::string answer;
  if (!connected_) return answer;
  const std::string request = absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: test\r\n\r\n");
  EXPECT_EQ(write(socket_, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  char buffer[4096];
  for (ssize_t n = 0; (n = read(socket_, buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  return answer;
}

std::string Http(const std::string& address, const std::string& method, const std::string& path) {
  return HttpConnection(address).Ask(method, path);
}

}  // namespace attnserve::testing
