// Health, reflection, metrics and the HTTP pages.
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/rpc/standard_services.h"
#include "tests/rpc/test_server.h"

namespace attnserve::testing {
namespace {

constexpr const char* kServices[] = {"", "attnserve.v1.AttentionService",
                                     "attnserve.v1.SessionService", "attnserve.v1.ModelService"};

TEST(Health, IsNotServingUntilModelsAreLoaded) {
  TestServer server(nullptr, /*load=*/false);
  for (const char* service : kServices) {
    EXPECT_EQ(CheckHealth(server.channel(), service), "NOT_SERVING") << service;
  }
  const std::string& http = server.server().http_address();
  EXPECT_NE(Http(http, "GET", "/healthz").find(" 200 OK"), std::string::npos);
  EXPECT_NE(Http(http, "GET", "/readyz").find(" 503 "), std::string::npos);
  EXPECT_NE(Http(http, "GET", "/metrics").find(" 200 OK"), std::string::npos);
  v1::DecodeResponse response;
  grpc::ClientContext decode_context;
  const grpc::Status status =
      server.attention().Decode(&decode_context, TinyStep("x", 1, 1), &response);
  EXPECT_EQ(Summary(status), "UNAVAILABLE STARTING");
  EXPECT_GT(ErrorOf(status).retry_seconds, 0);
  v1::ListModelsResponse list;
  grpc::ClientContext list_context;
  EXPECT_EQ(Summary(server.models().ListModels(&list_context, v1::ListModelsRequest(), &list)),
            "UNAVAILABLE STARTING");
  grpc::ClientContext stream_context;
  EXPECT_EQ(Summary(server.attention().StreamDecode(&stream_context)->Finish()),
            "UNAVAILABLE STARTING");

  HealthWatch watch(server.channel(), "attnserve.v1.AttentionService");
  EXPECT_EQ(watch.Next(), "NOT_SERVING");
  ASSERT_TRUE(server.server().Load().ok());
  EXPECT_EQ(watch.Next(), "SERVING");
  for (const char* service : kServices) {
    EXPECT_EQ(CheckHealth(server.channel(), service), "SERVING") << service;
  }
  EXPECT_NE(Http(http, "GET", "/readyz").find(" 200 OK"), std::string::npos);
}

TEST(Health, UnknownServiceIsNotFound) {
  TestServer server;
  EXPECT_EQ(CheckHealth(server.channel(), "nobody"), std::to_string(grpc::NOT_FOUND));
}

TEST(Reflection, ListsTheServices) {
  TestServer server;
  const std::set<std::string> names = ReflectedServices(server.channel());
  for (const char* service : kServices) {
    if (*service == 0) continue;
    EXPECT_EQ(names.count(service), 1u) << service;
  }
  EXPECT_EQ(names.count("grpc.health.v1.Health"), 1u);
}

TEST(HttpPages, AnswerGetAndHeadOnly) {
  TestServer server;
  const std::string& http = server.server().http_address();
  EXPECT_NE(Http(http, "GET", "/").find("href=\"/metrics\""), std::string::npos);
  for (const char* path : {"/", "/metrics", "/healthz", "/readyz"}) {
    EXPECT_EQ(Http(http, "GET", path).compare(0, 15, "HTTP/1.1 200 OK"), 0) << path;
    const std::string head = Http(http, "HEAD", path);
    EXPECT_EQ(head.compare(0, 15, "HTTP/1.1 200 OK"), 0) << path;
    EXPECT_EQ(head.find("\r\n\r\n"), head.size() - 4) << path << head;
    for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"}) {
      const std::string answer = Http(http, method, path);
      EXPECT_EQ(answer.compare(0, 12, "HTTP/1.1 405"), 0) << method << " " << path << answer;
    }
  }
  EXPECT_EQ(Http(http, "GET", "/nothing").compare(0, 12, "HTTP/1.1 404"), 0);
  EXPECT_EQ(Http(http, "GET", "/healthz/x").compare(0, 12, "HTTP/1.1 404"), 0);
  EXPECT_EQ(Http(http, "GET", "/../etc/passwd").compare(0, 10, "HTTP/1.1 4"), 0);
}

TEST(HttpPages, SilentClientsHoldNobodyUp) {
  TestServer server;
  const std::string& http = server.server().http_address();
  std::vector<std::unique_ptr<HttpConnection>> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(std::make_unique<HttpConnection>(http));
    EXPECT_TRUE(silent.back()->connected());
  }
  EXPECT_NE(Http(http, "GET", "/healthz").find(" 200 OK"), std::string::npos);
  // Nobody has been told to go yet: a thread was free all along.
  EXPECT_NE(silent.front()->Ask("GET", "/readyz").find(" 200 OK"), std::string::npos);
}

TEST(HttpPages, CanBeTurnedOff) {
  TestServer server([](ServerOptions* options) { options->http.clear(); });
  EXPECT_EQ(server.server().http_address(), "");
  EXPECT_EQ(server.TinySession().size(), 32u);
}

TEST(Metrics, CountWhatHappens) {
  TestServer server;
  const std::string session = server.TinySession();
  v1::DecodeResponse response;
  grpc::ClientContext first, second, third;
  ASSERT_TRUE(server.attention().Decode(&first, TinyStep(session, 20, 1), &response).ok());
  ASSERT_TRUE(server.attention().Decode(&second, TinyStep(session, 1, 1), &response).ok());
  ASSERT_FALSE(server.attention().Decode(&third, TinyStep("absent", 1, 1), &response).ok());
  v1::AttendRequest attend;
  *attend.mutable_q() = FloatTensor({1, 1, 1, 2}, {NAN, 0});
  *attend.mutable_k() = FloatTensor({1, 1, 1, 2}, {1, 1});
  *attend.mutable_v() = FloatTensor({1, 1, 1, 2}, {1, 1});
  v1::AttendResponse attended;
  grpc::ClientContext fourth, fifth;
  ASSERT_TRUE(server.attention().Attend(&fourth, attend, &attended).ok());
  *attend.mutable_q() = FloatTensor({1, 1, 1, 2}, {1, 0});
  *attend.mutable_masks()->mutable_key_mask() = BoolTensor({1, 1}, std::string(1, '\0'));
  ASSERT_TRUE(server.attention().Attend(&fifth, attend, &attended).ok());

  const auto metric = [&](const char* series) { return server.Metric(series); };
  // The engine reports after it has answered.
  EXPECT_TRUE(WaitFor([&] { return metric("attnserve_masked_rows_total") == 1; }));
  EXPECT_EQ(metric("attnserve_rpc_requests_total{code=\"OK\",method=\"Decode\"}"), 2);
  EXPECT_EQ(metric("attnserve_rpc_requests_total{code=\"NOT_FOUND\",method=\"Decode\"}"), 1);
  EXPECT_EQ(metric("attnserve_rpc_duration_seconds_count{code=\"OK\",method=\"Decode\"}"), 2);
  EXPECT_GT(metric("attnserve_rpc_duration_seconds_sum{code=\"OK\",method=\"Decode\"}"), 0);
  EXPECT_EQ(metric("attnserve_rpc_in_flight{method=\"Decode\"}"), 0);
  EXPECT_EQ(metric("attnserve_tokens_total{phase=\"prefill\"}"), 20);
  EXPECT_EQ(metric("attnserve_tokens_total{phase=\"decode\"}"), 1);
  EXPECT_EQ(metric("attnserve_tokens_total{phase=\"attend\"}"), 2);
  EXPECT_GE(metric("attnserve_queue_wait_seconds_count{phase=\"decode\"}"), 1);
  EXPECT_GE(metric("attnserve_batch_calls_count{phase=\"decode\"}"), 1);
  EXPECT_GE(metric("attnserve_batch_rows_sum{phase=\"prefill\"}"), 20);
  EXPECT_GT(metric("attnserve_compute_seconds_sum{phase=\"prefill\"}"), 0);
  EXPECT_GE(metric("attnserve_nonfinite_values_total"), 1);
  EXPECT_EQ(metric("attnserve_calls_rejected_total{reason=\"SESSION_NOT_FOUND\"}"), 1);
  EXPECT_EQ(metric("attnserve_calls_cancelled_total{reason=\"deadline\"}"), 0);
  EXPECT_EQ(metric("attnserve_sessions{state=\"live\"}"), 1);
  EXPECT_EQ(metric("attnserve_sessions_created_total"), 1);
  EXPECT_EQ(metric("attnserve_sessions_ended_total{reason=\"deleted\"}"), 0);
  EXPECT_EQ(metric("attnserve_kv_budget_bytes"), 64 << 20);
  EXPECT_GT(metric("attnserve_kv_bytes{class=\"blocks\"}"), 0);
  EXPECT_GE(metric("attnserve_kv_bytes{class=\"promised\"}"), 0);
  EXPECT_EQ(metric("attnserve_kv_bytes{class=\"scratch\"}"), 0);
  EXPECT_GT(metric("attnserve_model_weight_bytes{model=\"tiny\"}"), 0);
  EXPECT_GT(metric("process_start_time_seconds"), 1.5e9);
  EXPECT_GT(metric("process_resident_memory_bytes"), 1e6);

  v1::DeleteSessionRequest remove;
  remove.set_session_id(session);
  v1::DeleteSessionResponse removed;
  grpc::ClientContext sixth;
  ASSERT_TRUE(server.sessions().DeleteSession(&sixth, remove, &removed).ok());
  EXPECT_EQ(metric("attnserve_sessions{state=\"live\"}"), 0);
  EXPECT_EQ(metric("attnserve_sessions_ended_total{reason=\"deleted\"}"), 1);
}

TEST(Metrics, PageIsInPrometheusForm) {
  TestServer server;
  const std::string session = server.TinySession();
  const std::string page = server.Metrics();
  EXPECT_NE(page.find("Content-Type: text/plain; version=0.0.4"), std::string::npos);
  EXPECT_EQ(page.find(session), std::string::npos) << "a session id in a label";
  const std::string build = page.substr(page.find("attnserve_build_info{"));
  for (const char* label : {"version=\"", "onednn=\"", "isa=\"", "numerics_id=\"v1 "}) {
    EXPECT_NE(build.find(label), std::string::npos) << label;
  }
  const std::regex line("# (HELP|TYPE) .*|[a-z_]+(\\{[^{}]*\\})? [-+0-9.eInfNa]+|");
  for (const auto& text : absl::StrSplit(page.substr(page.find("\r\n\r\n") + 4), '\n')) {
    EXPECT_TRUE(std::regex_match(std::string(text), line)) << std::string(text);
  }
}

}  // namespace
}  // namespace attnserve::testing
