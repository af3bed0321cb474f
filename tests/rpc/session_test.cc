// Sessions and models over the wire.
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/rpc/test_server.h"

namespace attnserve::testing {
namespace {

v1::Session Get(TestServer& server, const std::string& id) {
  v1::GetSessionRequest request;
  request.set_session_id(id);
  v1::GetSessionResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.sessions().GetSession(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.session();
}

TEST(Sessions, QuoteSaysWhatATokenCosts) {
  TestServer server;
  v1::CreateSessionRequest request;
  request.set_model("tiny");
  request.set_session_id("quoted");
  request.set_max_tokens(100);
  request.set_reserve(true);
  request.mutable_ttl()->set_seconds(77);
  request.set_cache_dtype(v1::DTYPE_F16);
  v1::CreateSessionResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(server.sessions().CreateSession(&context, request, &response).ok());
  EXPECT_EQ(response.session().session_id(), "quoted");
  EXPECT_EQ(response.session().model(), "tiny");
  EXPECT_EQ(response.session().max_tokens(), 100);
  EXPECT_EQ(response.session().ttl().seconds(), 77);
  EXPECT_EQ(response.session().cache_dtype(), v1::DTYPE_F16);
  EXPECT_EQ(response.session().layers_size(), 2);
  EXPECT_EQ(response.tokens_per_block(), 64);
  EXPECT_EQ(response.bytes_per_block(), 64 * response.bytes_per_token());
  // 100 tokens are two blocks.
  EXPECT_GE(response.reserved_bytes(), 2 * response.bytes_per_block());
}

TEST(Sessions, HaveNoOneCacheTypeWhereThatOfLayersDiffers) {
  TestServer server;
  v1::CreateSessionRequest request;
  for (const v1::DType dtype : {v1::DTYPE_UNSPECIFIED, v1::DTYPE_I8}) {
    v1::LayerSpec* layer = request.mutable_core()->add_layers();
    layer->set_kind(v1::LAYER_KIND_CORE_ATTENTION);
    layer->set_head_count(2);
    layer->set_key_head_size(4);
    layer->set_cache_dtype(dtype);
  }
  v1::CreateSessionResponse response;
  grpc::ClientContext mixed;
  ASSERT_TRUE(server.sessions().CreateSession(&mixed, request, &response).ok());
  EXPECT_EQ(response.session().cache_dtype(), v1::DTYPE_UNSPECIFIED);
  request.set_cache_dtype(v1::DTYPE_I8);
  grpc::ClientContext same;
  ASSERT_TRUE(server.sessions().CreateSession(&same, request, &response).ok());
  EXPECT_EQ(response.session().cache_dtype(), v1::DTYPE_I8);
}

TEST(Sessions, StepsChangeWhatGetSessionShows) {
  TestServer server;
  const std::string id = server.TinySession();
  EXPECT_EQ(Get(server, id).min_length(), 0);
  const v1::DecodeResponse first = Decode(server, TinyStep(id, 5, 1));
  EXPECT_EQ(first.position(), 0);
  EXPECT_EQ(first.length(), 5);
  v1::DecodeRequest one_layer = TinyStep(id, 2, 2);
  one_layer.set_layer(0);
  EXPECT_EQ(Decode(server, one_layer).length(), 7);
  const v1::Session session = Get(server, id);
  EXPECT_EQ(session.layers(0).length(), 7);
  EXPECT_EQ(session.layers(1).length(), 5);
  EXPECT_EQ(session.min_length(), 5);
  EXPECT_GT(session.owned_bytes(), 0);
  EXPECT_GT(session.layers(0).kv_bytes(), 0);
  EXPECT_GT(session.create_time().seconds(), 1500000000);
  EXPECT_GT(session.expires_in().seconds(), 0);
}

TEST(Sessions, TruncationRollsBackExactly) {
  TestServer server;
  const std::string id = server.TinySession(), other = server.TinySession();
  Decode(server, TinyStep(id, 6, 1));
  Decode(server, TinyStep(other, 6, 1));
  Decode(server, TinyStep(id, 3, 50));
  v1::TruncateSessionRequest request;
  request.set_session_id(id);
  request.set_length(6);
  v1::TruncateSessionResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(server.sessions().TruncateSession(&context, request, &response).ok());
  EXPECT_EQ(response.session().min_length(), 6);
  EXPECT_EQ(Decode(server, TinyStep(id, 1, 2)).output().data(),
            Decode(server, TinyStep(other, 1, 2)).output().data());
}

TEST(Sessions, ResetStartsAfresh) {
  TestServer server;
  const std::string id = server.TinySession();
  const v1::DecodeResponse before = Decode(server, TinyStep(id, 4, 1));
  v1::ResetCacheRequest request;
  request.set_session_id(id);
  v1::ResetCacheResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(server.sessions().ResetCache(&context, request, &response).ok());
  EXPECT_EQ(response.session().min_length(), 0);
  EXPECT_EQ(Decode(server, TinyStep(id, 4, 1)).output().data(), before.output().data());
}

TEST(Sessions, DeletionIsIdempotentAndRemembered) {
  TestServer server;
  const std::string id = server.TinySession();
  v1::DeleteSessionRequest request;
  request.set_session_id(id);
  v1::DeleteSessionResponse response;
  grpc::ClientContext first, second;
  ASSERT_TRUE(server.sessions().DeleteSession(&first, request, &response).ok());
  EXPECT_TRUE(response.existed());
  ASSERT_TRUE(server.sessions().DeleteSession(&second, request, &response).ok());
  EXPECT_FALSE(response.existed());
  v1::ListSessionsRequest list;
  list.set_show_ended(true);
  v1::ListSessionsResponse listed;
  grpc::ClientContext list_context;
  ASSERT_TRUE(server.sessions().ListSessions(&list_context, list, &listed).ok());
  ASSERT_EQ(listed.ended_size(), 1);
  EXPECT_EQ(listed.ended(0).session_id(), id);
  EXPECT_EQ(listed.ended(0).reason(), v1::EndedSession::REASON_DELETED);
}

TEST(Sessions, PagesListEverySessionOnce) {
  TestServer server;
  std::set<std::string> expected, seen;
  for (int i = 0; i < 7; ++i) expected.insert(server.TinySession());
  v1::ListSessionsRequest request;
  request.set_page_size(3);
  for (int page = 0; page < 3; ++page) {
    v1::ListSessionsResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(server.sessions().ListSessions(&context, request, &response).ok());
    EXPECT_EQ(response.sessions_size(), page < 2 ? 3 : 1);
    for (const v1::Session& session : response.sessions()) {
      EXPECT_TRUE(seen.insert(session.session_id()).second);
    }
    EXPECT_EQ(response.next_page_token().empty(), page == 2);
    request.set_page_token(response.next_page_token());
  }
  EXPECT_EQ(seen, expected);
}

TEST(Models, AreListedAsLoaded) {
  TestServer server;
  v1::ListModelsResponse list;
  grpc::ClientContext list_context;
  ASSERT_TRUE(server.models().ListModels(&list_context, v1::ListModelsRequest(), &list).ok());
  ASSERT_EQ(list.models_size(), 2);
  EXPECT_EQ(list.models(0).name(), "cross");
  EXPECT_EQ(list.models(1).name(), "tiny");
  v1::GetModelRequest request;
  request.set_name("tiny");
  v1::GetModelResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(server.models().GetModel(&context, request, &response).ok());
  EXPECT_EQ(response.model().layer_count(), 2);
  EXPECT_EQ(response.model().max_tokens(), kTinyMaxTokens);
  EXPECT_TRUE(response.model().layers_chain());
  EXPECT_GT(response.model().weight_bytes(), 0);
  ASSERT_EQ(response.layers_size(), 2);
  EXPECT_EQ(response.layers(0).input_size(), kTinyWidth);
  EXPECT_EQ(response.layers(0).key_head_size(), kTinyWidth / 4);
  EXPECT_EQ(response.layers(0).attention().scale(), 0.5f);
}

TEST(Models, OnlyModelNeedsNoName) {
  TestServer server([](ServerOptions* options) { options->models.resize(1); });
  v1::ForwardRequest request;
  *request.mutable_x() = RandomTensor({1, 2, kTinyWidth}, 1);
  v1::ForwardResponse response;
  grpc::ClientContext context;
  EXPECT_TRUE(server.attention().Forward(&context, request, &response).ok());
}

TEST(Models, ServerInfoSaysWhatItTakes) {
  TestServer server([](ServerOptions* options) {
    options->max_message_bytes = int64_t{8} << 20;
    options->session_ttl = std::chrono::seconds(90);
  });
  server.TinySession();
  v1::GetServerInfoResponse info;
  grpc::ClientContext context;
  ASSERT_TRUE(server.models().GetServerInfo(&context, v1::GetServerInfoRequest(), &info).ok());
  EXPECT_EQ(info.server_instance_id().size(), 32u);
  EXPECT_FALSE(info.version().empty());
  EXPECT_GT(info.start_time().seconds(), 1500000000);
  EXPECT_FALSE(info.instruction_set().empty());
  EXPECT_FALSE(info.onednn_version().empty());
  EXPECT_EQ(info.numerics_id().compare(0, 3, "v1 "), 0) << info.numerics_id();
  EXPECT_NE(info.numerics_id().find("block64 gemm="), std::string::npos) << info.numerics_id();
  EXPECT_EQ(info.thread_count(), 2);
  EXPECT_EQ(info.max_message_bytes(), int64_t{8} << 20);
  EXPECT_EQ(info.max_stage_bytes(), int64_t{2} << 20);
  EXPECT_GT(info.max_scores(), 0);
  EXPECT_EQ(info.kv_budget_bytes(), int64_t{64} << 20);
  EXPECT_GT(info.max_sessions(), 0);
  EXPECT_EQ(info.session_count(), 1);
  EXPECT_EQ(info.default_session_ttl().seconds(), 90);
  EXPECT_EQ(info.tokens_per_block(), 64);
  EXPECT_EQ(info.max_reply_bytes(), (int64_t{8} << 20) * 63 / 64 - 4096);
}

}  // namespace
}  // namespace attnserve::testing
