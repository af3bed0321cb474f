// A real server on real sockets, and what tests say to it.
#ifndef ATTNSERVE_TESTS_RPC_TEST_SERVER_H_
#define ATTNSERVE_TESTS_RPC_TEST_SERVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attnserve/v1/attention_service.grpc.pb.h"
#include "attnserve/v1/model_service.grpc.pb.h"
#include "attnserve/v1/session_service.grpc.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/status.h"
#include "server/server.h"

namespace attnserve::testing {

namespace v1 = attnserve::v1;

// Sizes of the model "tiny": two causal self-attention layers with rotary positions, 16 wide.
inline constexpr int64_t kTinyWidth = 16;
inline constexpr int64_t kTinyMaxTokens = 4096;

// A folder that is removed with this object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Writes the models "tiny" and "cross" (one cross-attention layer, x 8 wide, context 6 wide) below
// `folder` and returns them.
std::vector<ModelSource> WriteTestModels(const std::string& folder);

// A server with free ports, the test models and two threads; `change` may change its options.
class TestServer {
 public:
  explicit TestServer(const std::function<void(ServerOptions*)>& change = nullptr,
                      bool load = true);
  ~TestServer();

  Server& server() { return *server_; }
  std::string address() const { return server_->grpc_addresses()[0]; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  v1::AttentionService::Stub& attention() { return *attention_; }
  v1::SessionService::Stub& sessions() { return *sessions_; }
  v1::ModelService::Stub& models() { return *models_; }

  // A new session over the model "tiny"; returns its id.
  std::string TinySession();
  // A new session of one core-attention layer, causal, 4 query and 2 key/value heads of 8.
  std::string CoreSession();

  // The page /metrics.
  std::string Metrics() const;
  // Value of a series of that page, for example attnserve_sessions{state="live"}; -1 if absent.
  double Metric(const std::string& series) const;

 private:
  TemporaryFolder folder_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AttentionService::Stub> attention_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::ModelService::Stub> models_;
};

// An error as a program sees it.
struct RpcError {
  int code = 0;
  std::string reason;
  std::string field;
  std::map<std::string, std::string> metadata;
  double retry_seconds = 0;
  std::string message;
};
RpcError ErrorOf(const grpc::Status& status);
RpcError ErrorOf(const google::rpc::Status& status);

// "INVALID_ARGUMENT BAD_SHAPE x": code, reason and field, for comparisons that read well.
template <class Status>
std::string Summary(const Status& status);

// An F32 tensor in `data` of values that depend on `seed` only, between -1 and 1.
v1::Tensor RandomTensor(const std::vector<int64_t>& shape, uint32_t seed);
// A tensor in `data`.
v1::Tensor FloatTensor(const std::vector<int64_t>& shape, const std::vector<float>& values);
v1::Tensor BoolTensor(const std::vector<int64_t>& shape, const std::string& bytes);
v1::Tensor Int64Tensor(const std::vector<int64_t>& shape, const std::vector<int64_t>& values);
std::vector<float> Floats(const v1::Tensor& tensor);

// A step of the model "tiny", all layers, with `tokens` tokens of RandomTensor(seed).
v1::DecodeRequest TinyStep(const std::string& session_id, int64_t tokens, uint32_t seed);
// A step of CoreSession.
v1::DecodeRequest CoreStep(const std::string& session_id, int64_t tokens, uint32_t seed);
// The reply of a step that must be served.
v1::DecodeResponse Decode(TestServer& server, const v1::DecodeRequest& request);
// An Attend call that takes a good part of a second.
v1::AttendRequest LongAttend();

// Waits until `condition` holds, at most 30 seconds; returns whether it does.
bool WaitFor(const std::function<bool()>& condition);

// A connection to an HTTP server, for example "127.0.0.1:80", for one request or none.
class HttpConnection {
 public:
  explicit HttpConnection(const std::string& address);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  bool connected() const { return connected_; }
  // The whole answer; "" if there is none.
  std::string Ask(const std::string& method, const std::string& path);

 private:
  int socket_;
  bool connected_ = false;
};

// One HTTP request, for example ("127.0.0.1:80", "GET", "/healthz"): the whole answer.
std::string Http(const std::string& address, const std::string& method, const std::string& path);

}  // namespace attnserve::testing

#endif  // ATTNSERVE_TESTS_RPC_TEST_SERVER_H_
