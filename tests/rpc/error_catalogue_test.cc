// The errors of stateless calls, and of models: exact code, reason and field.
#include "tests/rpc/error_catalogue.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace attnserve::testing {
namespace {

TEST_F(ErrorCatalogue, ForwardRefusesBadArguments) {
  using Request = v1::ForwardRequest;
  EXPECT_EQ(Forward([](Request*) {}), "OK");
  EXPECT_EQ(Forward([](Request* r) { r->clear_x(); }), With(kBadShape, "x"));
  EXPECT_EQ(Forward([](Request* r) {
              *r->mutable_x() = RandomTensor({3, kTinyWidth}, 1);
            }),
            With(kBadShape, "x"));
  EXPECT_EQ(Forward([](Request* r) {
              *r->mutable_x() = RandomTensor({1, 3, 15}, 1);
            }),
            With(kBadShape, "x"));
  EXPECT_EQ(Forward([](Request* r) { r->mutable_x()->mutable_shape()->Set(0, -2); }),
            With(kBadShape, "x"));
  EXPECT_EQ(Forward([](Request* r) { r->mutable_x()->mutable_data()->pop_back(); }),
            With(kMismatch, "x"));
  EXPECT_EQ(Forward([](Request* r) { r->mutable_x()->set_dtype(v1::DTYPE_UNSPECIFIED); }),
            With(kBadDType, "x.dtype"));
  EXPECT_EQ(Forward([](Request* r) {
              *r->mutable_x() = Int64Tensor({1, 1, 16}, std::vector<int64_t>(16));
            }),
            With(kBadDType, "x"));
  EXPECT_EQ(Forward([](Request* r) {
              r->mutable_x()->mutable_shape()->Set(0, int64_t{1} << 40);
              r->mutable_x()->mutable_shape()->Set(1, int64_t{1} << 40);
            }),
            With(kTooLarge, "x"));
  EXPECT_EQ(Forward([](Request* r) {
              *r->mutable_context() = RandomTensor({2, 3, 16}, 1);
            }),
            With(kBadOption, "context"));
  EXPECT_EQ(Forward([](Request* r) { r->mutable_dropout()->set_p(1.0f); }),
            With(kBadOption, "dropout.p"));
  EXPECT_EQ(Forward([](Request* r) { r->add_stages(v1::STAGE_UNSPECIFIED); }),
            With(kBadOption, "stages[0]"));
  EXPECT_EQ(Forward([](Request* r) {
              r->add_stages(v1::STAGE_LSE);
              r->add_stages(v1::STAGE_LSE);
            }),
            With(kBadOption, "stages"));
  EXPECT_EQ(Forward([](Request* r) {
              *r->mutable_positions() = Int64Tensor({3}, {0, -1, 2});
            }),
            With(kBadOption, "positions"));
  EXPECT_EQ(Forward([](Request* r) {
              *r->mutable_positions() = Int64Tensor({4}, {0, 1, 2, 3});
            }),
            With(kBadShape, "positions"));
}

TEST_F(ErrorCatalogue, ForwardRefusesBadMasks) {
  using Request = v1::ForwardRequest;
  const auto masks = [](const std::function<void(v1::CallMasks*)>& change) {
    return Forward([&change](Request* r) { change(r->mutable_masks()); });
  };
  EXPECT_EQ(masks([](v1::CallMasks* m) {
              *m->mutable_lengths() = Int64Tensor({2}, {3, 4});
            }),
            With(kBadMask, "masks.lengths"));
  EXPECT_EQ(masks([](v1::CallMasks* m) {
              *m->mutable_lengths() = Int64Tensor({2}, {3, -1});
            }),
            With(kBadMask, "masks.lengths"));
  EXPECT_EQ(masks([](v1::CallMasks* m) { *m->mutable_lengths() = Int64Tensor({1}, {3}); }),
            With(kBadShape, "masks.lengths"));
  EXPECT_EQ(masks([](v1::CallMasks* m) {
              *m->mutable_key_mask() = BoolTensor({2, 3}, std::string("\1\1\2\1\1\1", 6));
            }),
            With(kBadMask, "masks.key_mask"));
  EXPECT_EQ(masks([](v1::CallMasks* m) {
              *m->mutable_key_mask() = BoolTensor({2, 3}, std::string(6, '\1'));
              *m->mutable_lengths() = Int64Tensor({2}, {3, 3});
            }),
            With(kBadOption, "masks.key_mask"));
  EXPECT_EQ(masks([](v1::CallMasks* m) {
              *m->mutable_attention_mask() = BoolTensor({2, 2}, std::string(4, '\1'));
            }),
            With(kBadMask, "masks.attention_mask"));
  EXPECT_EQ(masks([](v1::CallMasks* m) {
              *m->mutable_attention_mask() = BoolTensor({3, 3}, std::string(9, '\3'));
            }),
            With(kBadMask, "masks.attention_mask"));
  EXPECT_EQ(masks([](v1::CallMasks* m) {
              *m->mutable_attention_mask() = FloatTensor({1, 3}, {0, NAN, 0});
            }),
            With(kBadMask, "masks.attention_mask"));
  EXPECT_EQ(masks([](v1::CallMasks* m) {
              *m->mutable_attention_mask() = Int64Tensor({1, 3}, {0, 1, 0});
            }),
            With(kBadDType, "masks.attention_mask"));
}

TEST_F(ErrorCatalogue, ForwardRefusesWhatIsNotServed) {
  using Request = v1::ForwardRequest;
  EXPECT_EQ(Forward([](Request* r) { r->set_model("absent"); }), "NOT_FOUND MODEL_NOT_FOUND");
  EXPECT_EQ(Forward([](Request* r) { r->clear_model(); }), "NOT_FOUND MODEL_NOT_FOUND");
  EXPECT_EQ(Forward([](Request* r) { r->set_layer(2); }), "NOT_FOUND LAYER_NOT_FOUND");
  EXPECT_EQ(Forward([](Request* r) { r->set_layer(-1); }), "NOT_FOUND LAYER_NOT_FOUND");
  EXPECT_EQ(Forward([](Request* r) {
              *r->mutable_x() = RandomTensor({1, kTinyMaxTokens + 1, kTinyWidth}, 1);
            }),
            "OUT_OF_RANGE MAX_TOKENS");
  EXPECT_EQ(Forward([](Request* r) {
              r->set_model("cross");
              *r->mutable_x() = RandomTensor({1, 2, 8}, 1);
            }),
            "FAILED_PRECONDITION LAYER_NEEDS_CONTEXT");
}

TEST_F(ErrorCatalogue, ForwardRefusesRepliesThatAreTooLarge) {
  // Two layers of [1, 4, 2048, 2048] scores in F32 are 128 MiB.
  EXPECT_EQ(Forward([](v1::ForwardRequest* r) {
              *r->mutable_x() = RandomTensor({1, 2048, kTinyWidth}, 1);
              r->add_stages(v1::STAGE_WEIGHTS);
            }),
            "RESOURCE_EXHAUSTED RESPONSE_TOO_LARGE");
}

TEST_F(ErrorCatalogue, AttendRefusesBadArguments) {
  using Request = v1::AttendRequest;
  EXPECT_EQ(Attend([](Request*) {}), "OK");
  EXPECT_EQ(Attend([](Request* r) { r->clear_q(); }), With(kBadShape, "q"));
  EXPECT_EQ(Attend([](Request* r) { r->clear_k(); }), With(kBadShape, "k"));
  EXPECT_EQ(Attend([](Request* r) {
              *r->mutable_k() = RandomTensor({1, 2, 5, 7}, 2);
            }),
            With(kBadShape, "k"));
  EXPECT_EQ(Attend([](Request* r) {
              *r->mutable_v() = RandomTensor({1, 2, 4, 8}, 2);
            }),
            With(kBadShape, "v"));
  EXPECT_EQ(Attend([](Request* r) {
              *r->mutable_q() = RandomTensor({1, 3, 32}, 2);
            }),
            With(kBadOption, "head_count"));
  EXPECT_EQ(Attend([](Request* r) { r->set_head_count(5); }), With(kBadShape, "head_count"));
  EXPECT_EQ(Attend([](Request* r) {
              *r->mutable_past_key() = RandomTensor({1, 2, 1, 8}, 2);
            }),
            With(kBadOption, "past_value"));
  EXPECT_EQ(Attend([](Request* r) { r->mutable_v()->set_dtype(v1::DTYPE_F16); }),
            With(kMismatch, "v"));
  EXPECT_EQ(Attend([](Request* r) {
              r->mutable_v()->set_dtype(v1::DTYPE_F16);
              r->mutable_v()->mutable_data()->resize(2 * 5 * 8 * 2);
            }),
            With(kBadDType, "v"));
  EXPECT_EQ(
      Attend([](Request* r) { r->mutable_options()->mutable_query_norm()->set_epsilon(1e-6f); }),
      With(kBadOption, "options.query_norm.kind"));
  EXPECT_EQ(Attend([](Request* r) { *r->mutable_static_cache_lengths() = Int64Tensor({1}, {6}); }),
            With(kBadMask, "static_cache_lengths"));
}

// What came and what was expected, where a code and a field are not enough.
TEST_F(ErrorCatalogue, MessagesSayWhatCame) {
  const auto forward = [](const v1::Tensor& x) {
    v1::ForwardRequest request;
    request.set_model("tiny");
    *request.mutable_x() = x;
    v1::ForwardResponse response;
    return Call(&v1::AttentionService::Stub::Forward, request, &response).error_message();
  };
  EXPECT_EQ(forward(Int64Tensor({1}, {6})), "x: came as I64; expected F32, F16 or BF16");
  EXPECT_EQ(forward(RandomTensor({1, kTinyMaxTokens + 1, kTinyWidth}, 1)),
            "the sequence would have " + std::to_string(kTinyMaxTokens + 1) +
                " tokens; the limit is " + std::to_string(kTinyMaxTokens) +
                ": send shorter sequences");
  v1::AttendRequest attend;
  *attend.mutable_q() = RandomTensor({1, 3, 32}, 1);
  *attend.mutable_k() = *attend.mutable_v() = RandomTensor({1, 5, 16}, 2);
  const auto heads = [&attend](int64_t count, int64_t kv_count) {
    attend.set_head_count(count);
    attend.set_kv_head_count(kv_count);
    v1::AttendResponse response;
    return Call(&v1::AttentionService::Stub::Attend, attend, &response).error_message();
  };
  EXPECT_EQ(heads(4, 2), "");
  EXPECT_EQ(heads(-2, 2),
            "head_count: is -2; 3-dimensional tensors need both head counts, 1 or more");
  EXPECT_EQ(heads(4, 0),
            "kv_head_count: is not set; 3-dimensional tensors need both head counts, 1 or more");
}

TEST_F(ErrorCatalogue, UnknownModelIsNotFound) {
  v1::GetModelRequest request;
  request.set_name("absent");
  v1::GetModelResponse response;
  grpc::ClientContext context;
  const RpcError error = ErrorOf(server_->models().GetModel(&context, request, &response));
  EXPECT_EQ(error.reason, "MODEL_NOT_FOUND");
  EXPECT_NE(error.message.find("tiny"), std::string::npos) << error.message;
}

}  // namespace
}  // namespace attnserve::testing
