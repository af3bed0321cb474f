// The errors of sessions and their steps: exact code, reason and field.
#include <cstdint>
#include <string>

#include "tests/rpc/error_catalogue.h"

namespace attnserve::testing {
namespace {

TEST_F(ErrorCatalogue, DecodeRefusesBadArguments) {
  using Request = v1::DecodeRequest;
  const std::string session = server_->TinySession();
  EXPECT_EQ(Decode(session, [](Request* r) { r->clear_session_id(); }),
            With(kBadOption, "session_id"));
  EXPECT_EQ(Decode(session, [](Request* r) { r->clear_x(); }), With(kBadShape, "x"));
  EXPECT_EQ(Decode(session,
                   [](Request* r) {
                     *r->mutable_x() = RandomTensor({2, 1, 16}, 1);
                   }),
            With(kBadShape, "x"));
  EXPECT_EQ(Decode(session,
                   [](Request* r) {
                     *r->mutable_q() = RandomTensor({1, 4, 1, 4}, 1);
                   }),
            With(kBadOption, "q"));
  EXPECT_EQ(Decode(session,
                   [](Request* r) {
                     *r->mutable_context() = RandomTensor({1, 1, 16}, 1);
                   }),
            With(kBadOption, "context"));
  EXPECT_EQ(Decode(session, [](Request* r) { r->set_layer(9); }), "NOT_FOUND LAYER_NOT_FOUND");
  EXPECT_EQ(Decode(session,
                   [](Request* r) {
                     *r->mutable_tree_mask() = BoolTensor({2, 2}, "\1\1\1\7");
                   }),
            With(kBadMask, "tree_mask"));
  EXPECT_EQ(Decode(session,
                   [](Request* r) {
                     *r->mutable_attention_mask() = BoolTensor({2, 2}, "\1\1\1\7");
                   }),
            With(kBadMask, "attention_mask"));
  EXPECT_EQ(Decode(session,
                   [](Request* r) {
                     *r->mutable_positions() = Int64Tensor({2}, {-1, 0});
                   }),
            With(kBadOption, "positions"));
  EXPECT_EQ(Decode(session, [](Request* r) { r->set_request_id(std::string(129, 'r')); }),
            With(kBadOption, "request_id"));
  EXPECT_EQ(Decode(session, [](Request* r) { r->set_expected_position(-1); }),
            With(kBadOption, "expected_position"));
  // None of them left a trace.
  EXPECT_EQ(Decode(session, [](Request* r) { r->set_expected_position(0); }), "OK");
}

TEST_F(ErrorCatalogue, DecodeRefusesWrongPositions) {
  const std::string session = server_->TinySession();
  EXPECT_EQ(Decode(session, [](v1::DecodeRequest*) {}), "OK");
  v1::DecodeRequest request = TinyStep(session, 1, 1);
  request.set_expected_position(1);
  RpcError error = ErrorOf(DecodeStatus(request));
  EXPECT_EQ(error.code, grpc::ABORTED);
  EXPECT_EQ(error.reason, "POSITION_CONFLICT");
  EXPECT_EQ(error.metadata["length"], "2");
  request.set_expected_position(3);
  error = ErrorOf(DecodeStatus(request));
  EXPECT_EQ(error.code, grpc::OUT_OF_RANGE);
  EXPECT_EQ(error.reason, "POSITION_BEYOND_LENGTH");
  EXPECT_EQ(error.metadata["length"], "2");
  request.set_expected_position(INT64_MAX);
  EXPECT_EQ(ErrorOf(DecodeStatus(request)).reason, "POSITION_BEYOND_LENGTH");
}

TEST_F(ErrorCatalogue, DecodeRefusesSessionsThatAreGone) {
  EXPECT_EQ(Decode("absent", [](v1::DecodeRequest*) {}), "NOT_FOUND SESSION_NOT_FOUND");
  v1::CreateSessionRequest create;
  create.set_model("tiny");
  create.mutable_ttl()->set_nanos(1000000);
  v1::CreateSessionResponse created;
  grpc::ClientContext context;
  ASSERT_TRUE(server_->sessions().CreateSession(&context, create, &created).ok());
  EXPECT_TRUE(WaitFor([&] {
    grpc::ClientContext get_context;
    v1::GetSessionRequest get;
    get.set_session_id(created.session().session_id());
    v1::GetSessionResponse response;
    return Summary(server_->sessions().GetSession(&get_context, get, &response)) ==
           "NOT_FOUND SESSION_EXPIRED";
  }));
  EXPECT_EQ(Decode(created.session().session_id(), [](v1::DecodeRequest*) {}),
            "NOT_FOUND SESSION_EXPIRED");
}

TEST_F(ErrorCatalogue, DecodeStopsAtMaxTokens) {
  v1::CreateSessionRequest create;
  create.set_model("tiny");
  create.set_max_tokens(3);
  v1::CreateSessionResponse created;
  grpc::ClientContext context;
  ASSERT_TRUE(server_->sessions().CreateSession(&context, create, &created).ok());
  const std::string session = created.session().session_id();
  EXPECT_EQ(Decode(session, [](v1::DecodeRequest*) {}), "OK");
  EXPECT_EQ(Decode(session, [](v1::DecodeRequest*) {}), "OUT_OF_RANGE MAX_TOKENS");
}

TEST_F(ErrorCatalogue, CrossAttentionNeedsItsContextOnce) {
  v1::CreateSessionRequest create;
  create.set_model("cross");
  v1::CreateSessionResponse created;
  grpc::ClientContext context;
  ASSERT_TRUE(server_->sessions().CreateSession(&context, create, &created).ok());
  v1::DecodeRequest step;
  step.set_session_id(created.session().session_id());
  *step.mutable_x() = RandomTensor({1, 1, 8}, 1);
  EXPECT_EQ(Summary(DecodeStatus(step)), "FAILED_PRECONDITION LAYER_NEEDS_CONTEXT");
  *step.mutable_context() = RandomTensor({1, 3, 6}, 2);
  EXPECT_EQ(Summary(DecodeStatus(step)), "OK");
  EXPECT_EQ(Summary(DecodeStatus(step)), With(kBadOption, "context"));
  step.clear_context();
  EXPECT_EQ(Summary(DecodeStatus(step)), "OK");
}

TEST_F(ErrorCatalogue, RequestIdWithAnotherPayloadIsRefused) {
  const std::string session = server_->TinySession();
  v1::DecodeRequest step = TinyStep(session, 1, 1);
  step.set_request_id("r");
  EXPECT_EQ(Summary(DecodeStatus(step)), "OK");
  *step.mutable_x() = RandomTensor({1, 1, kTinyWidth}, 2);
  EXPECT_EQ(Summary(DecodeStatus(step)), With(kBadOption, "request_id"));
}

TEST_F(ErrorCatalogue, CreateSessionRefusesBadArguments) {
  using Request = v1::CreateSessionRequest;
  const auto core = [](Request* r) {
    v1::LayerSpec* layer = r->mutable_core()->add_layers();
    layer->set_kind(v1::LAYER_KIND_CORE_ATTENTION);
    layer->set_head_count(2);
    layer->set_key_head_size(4);
    return layer;
  };
  EXPECT_EQ(Create([&](Request* r) { core(r); }), "OK");
  EXPECT_EQ(Create([](Request* r) { r->clear_layers(); }), With(kBadOption, "layers"));
  EXPECT_EQ(Create([](Request* r) { r->mutable_core(); }), With(kBadOption, "core.layers"));
  EXPECT_EQ(Create([&](Request* r) { core(r)->set_kv_head_count(3); }),
            With(kBadShape, "core.layers[0].kv_head_count"));
  EXPECT_EQ(Create([&](Request* r) {
              core(r);
              core(r)->set_key_head_size(0);
            }),
            With(kBadShape, "core.layers[1].key_head_size"));
  EXPECT_EQ(Create([&](Request* r) { core(r)->set_key_head_size(int64_t{1} << 40); }),
            With(kTooLarge, "core.layers[0].key_head_size"));
  EXPECT_EQ(Create([&](Request* r) {
              for (int i = 0; i <= 64; ++i) {
                v1::LayerSpec* layer = core(r);
                layer->set_key_head_size(4096);
                auto* norm = layer->mutable_attention()->mutable_query_norm();
                norm->set_kind(v1::HeadNorm::KIND_RMS);
                norm->set_epsilon(1e-6f);
                for (int j = 0; j < 4096; ++j) norm->add_weight(1.0f);
              }
            }),
            With(kTooLarge, "core.layers"));
  EXPECT_EQ(Create([&](Request* r) { core(r)->clear_kind(); }),
            With(kBadOption, "core.layers[0].kind"));
  EXPECT_EQ(Create([&](Request* r) {
              v1::LayerSpec* layer = core(r);
              layer->set_kind(v1::LAYER_KIND_SELF_ATTENTION);
              layer->set_input_size(8);
            }),
            With(kBadOption, "core.layers[0].kind"));
  EXPECT_EQ(Create([](Request* r) { r->set_session_id("no spaces"); }),
            With(kBadOption, "session_id"));
  EXPECT_EQ(Create([](Request* r) { r->set_session_id(std::string(129, 'a')); }),
            With(kBadOption, "session_id"));
  EXPECT_EQ(Create([](Request* r) { r->set_max_tokens(-1); }), With(kBadOption, "max_tokens"));
  EXPECT_EQ(Create([](Request* r) { r->set_max_tokens(kTinyMaxTokens + 1); }),
            With(kBadOption, "max_tokens"));
  EXPECT_EQ(Create([&](Request* r) {
              core(r);
              r->set_reserve(true);
            }),
            With(kBadOption, "reserve"));
  EXPECT_EQ(Create([](Request* r) { r->mutable_ttl()->set_seconds(-1); }), With(kBadOption, "ttl"));
  EXPECT_EQ(Create([](Request* r) { r->mutable_ttl()->set_seconds(INT64_MAX); }),
            With(kBadOption, "ttl"));
  EXPECT_EQ(Create([](Request* r) { r->set_cache_dtype(v1::DTYPE_I64); }),
            With(kBadDType, "cache_dtype"));
  EXPECT_EQ(Create([](Request* r) { r->set_cache_dtype(static_cast<v1::DType>(99)); }),
            With(kBadDType, "cache_dtype"));
  EXPECT_EQ(Create([](Request* r) { r->set_model("absent"); }), "NOT_FOUND MODEL_NOT_FOUND");
}

TEST_F(ErrorCatalogue, HeadsOfAllCoreLayersAreLimited) {
  EXPECT_EQ(Create([](auto* r) {
              for (int i = 0; i < 17; ++i) {
                v1::LayerSpec* layer = r->mutable_core()->add_layers();
                layer->set_kind(v1::LAYER_KIND_CORE_ATTENTION);
                layer->set_head_count(4096);
                layer->set_key_head_size(1);
              }
            }),
            With(kTooLarge, "core.layers"));
}

TEST_F(ErrorCatalogue, SessionIdsAreUnique) {
  EXPECT_EQ(Create([](v1::CreateSessionRequest* r) { r->set_session_id("mine"); }), "OK");
  EXPECT_EQ(Create([](v1::CreateSessionRequest* r) { r->set_session_id("mine"); }),
            "ALREADY_EXISTS SESSION_EXISTS");
}

TEST_F(ErrorCatalogue, BudgetIsRefusedWithARetryWhereItHelps) {
  v1::CreateSessionRequest request;
  v1::LayerSpec* layer = request.mutable_core()->add_layers();
  layer->set_kind(v1::LAYER_KIND_CORE_ATTENTION);
  layer->set_head_count(8);
  layer->set_key_head_size(128);
  request.set_reserve(true);
  const auto create = [&](int64_t tokens) {
    request.set_max_tokens(tokens);
    v1::CreateSessionResponse response;
    grpc::ClientContext context;
    return server_->sessions().CreateSession(&context, request, &response);
  };
  // 8 KiB a token, 64 MiB in all.
  ASSERT_TRUE(create(5000).ok());
  const RpcError error = ErrorOf(create(5000));
  EXPECT_EQ(error.code, grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.reason, "KV_BUDGET");
  EXPECT_GT(error.retry_seconds, 0);
  EXPECT_GT(std::stoll(error.metadata.at("needed_bytes")),
            std::stoll(error.metadata.at("free_bytes")));
  const RpcError hopeless = ErrorOf(create(1 << 20));
  EXPECT_EQ(hopeless.reason, "KV_BUDGET");
  EXPECT_EQ(hopeless.retry_seconds, 0);
}

TEST_F(ErrorCatalogue, SessionCallsRefuseBadArguments) {
  const std::string session = server_->TinySession();
  ASSERT_EQ(Decode(session, [](v1::DecodeRequest*) {}), "OK");
  const auto truncate = [](const std::string& id, int64_t length) {
    v1::TruncateSessionRequest request;
    request.set_session_id(id);
    request.set_length(length);
    v1::TruncateSessionResponse response;
    grpc::ClientContext context;
    return Summary(server_->sessions().TruncateSession(&context, request, &response));
  };
  EXPECT_EQ(truncate(session, -1), With(kBadOption, "length"));
  EXPECT_EQ(truncate(session, 3), "OUT_OF_RANGE POSITION_BEYOND_LENGTH");
  EXPECT_EQ(truncate("", 0), With(kBadOption, "session_id"));
  EXPECT_EQ(truncate("absent", 0), "NOT_FOUND SESSION_NOT_FOUND");
  EXPECT_EQ(truncate(session, 1), "OK");

  v1::ResetCacheRequest reset;
  reset.set_session_id(session);
  reset.add_layers(2);
  v1::ResetCacheResponse reset_response;
  grpc::ClientContext reset_context;
  EXPECT_EQ(Summary(server_->sessions().ResetCache(&reset_context, reset, &reset_response)),
            "NOT_FOUND LAYER_NOT_FOUND");

  v1::ListSessionsRequest list;
  list.set_page_size(-1);
  v1::ListSessionsResponse list_response;
  grpc::ClientContext list_context;
  EXPECT_EQ(Summary(server_->sessions().ListSessions(&list_context, list, &list_response)),
            With(kBadOption, "page_size"));
  list.set_page_size(1);
  list.set_page_token("no token");
  grpc::ClientContext token_context;
  EXPECT_EQ(Summary(server_->sessions().ListSessions(&token_context, list, &list_response)),
            With(kBadOption, "page_token"));
}

TEST_F(ErrorCatalogue, GetSessionNeedsAnId) {
  v1::GetSessionResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(Summary(server_->sessions().GetSession(&context, {}, &response)),
            With(kBadOption, "session_id"));
}

TEST_F(ErrorCatalogue, TooManyStepsAreRefused) {
  v1::DecodeBatchRequest request;
  for (int i = 0; i < 1025; ++i) request.add_steps()->set_session_id("x");
  v1::DecodeBatchResponse response;
  EXPECT_EQ(Summary(Call(&v1::AttentionService::Stub::DecodeBatch, request, &response)),
            With(kTooLarge, "steps"));
}

}  // namespace
}  // namespace attnserve::testing
