// Bad input, sent while a good session decodes: the server stays up, answers each with an
// error, and the session's outputs are those of a session on a server that saw none of it.
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/rpc/test_server.h"

namespace attnserve::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct BadCase {
  std::string name;
  std::function<grpc::Status(TestServer&)> send;
  std::string expected;  // Summary; "OK" where bad numbers are legal
};

void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.name; }

BadCase Forward(std::string name, std::string expected,
                std::function<void(v1::ForwardRequest*)> change) {
  return {std::move(name),
          [change](TestServer& server) {
            v1::ForwardRequest request;
            request.set_model("tiny");
            *request.mutable_x() = RandomTensor({1, 4, kTinyWidth}, 1);
            change(&request);
            v1::ForwardResponse response;
            grpc::ClientContext context;
            return server.attention().Forward(&context, request, &response);
          },
          std::move(expected)};
}

BadCase Attend(std::string name, std::string expected,
               std::function<void(v1::AttendRequest*)> change) {
  return {std::move(name),
          [change](TestServer& server) {
            v1::AttendRequest request;
            *request.mutable_q() = RandomTensor({1, 2, 3, 4}, 1);
            *request.mutable_k() = RandomTensor({1, 2, 3, 4}, 2);
            *request.mutable_v() = RandomTensor({1, 2, 3, 4}, 3);
            change(&request);
            v1::AttendResponse response;
            grpc::ClientContext context;
            return server.attention().Attend(&context, request, &response);
          },
          std::move(expected)};
}

void SetShape(v1::Tensor* tensor, const std::vector<int64_t>& shape) {
  tensor->mutable_shape()->Assign(shape.begin(), shape.end());
}

std::vector<BadCase> BadCases() {
  const int64_t big = int64_t{1} << 31;
  const std::string shape = "INVALID_ARGUMENT BAD_SHAPE x",
                    size = "INVALID_ARGUMENT SIZE_MISMATCH x",
                    shape_of_q = "INVALID_ARGUMENT BAD_SHAPE q";
  return {
      Forward("Rank0", shape, [](auto* r) { *r->mutable_x() = FloatTensor({}, {1}); }),
      Forward("Rank2", shape,
              [](auto* r) {
                SetShape(r->mutable_x(), {4, kTinyWidth});
              }),
      Forward("Rank9", shape,
              [](auto* r) {
                SetShape(r->mutable_x(), {1, 1, 1, 1, 1, 1, 1, 4, kTinyWidth});
              }),
      Forward("TooFewBytes", size, [](auto* r) { r->mutable_x()->mutable_data()->resize(7); }),
      Forward("TooManyBytes", size,
              [](auto* r) { r->mutable_x()->mutable_data()->append("abcd"); }),
      Forward("ZeroBatch", shape,
              [](auto* r) {
                *r->mutable_x() = FloatTensor({0, 4, 16}, {});
              }),
      Forward("ZeroWidth", shape,
              [](auto* r) {
                *r->mutable_x() = FloatTensor({1, 4, 0}, {});
              }),
      Forward("NegativeDimension", shape,
              [](auto* r) {
                SetShape(r->mutable_x(), {1, -4, -16});
              }),
      Forward("OverflowingDimensions", "INVALID_ARGUMENT TOO_LARGE x",
              [](auto* r) {
                SetShape(r->mutable_x(), {1, int64_t{1} << 61, 16});
              }),
      Forward("ProductThatWrapsToTheRightSize", "INVALID_ARGUMENT TOO_LARGE x",
              [](auto* r) {
                SetShape(r->mutable_x(), {int64_t{1} << 32, int64_t{1} << 32, 64});
              }),
      Forward("TwoToThe31Rows", size,
              [big](auto* r) {
                SetShape(r->mutable_x(), {1, big, 1});
              }),
      Forward("TwoToThe31EmptyRows", shape,
              [big](auto* r) {
                *r->mutable_x() = FloatTensor({1, big, 0}, {});
              }),
      Forward("UnknownDtype", "INVALID_ARGUMENT BAD_DTYPE x.dtype",
              [](auto* r) { r->mutable_x()->set_dtype(static_cast<v1::DType>(42)); }),
      Forward("MaskOfAnotherShape", "INVALID_ARGUMENT BAD_MASK masks.attention_mask",
              [](auto* r) {
                *r->mutable_masks()->mutable_attention_mask() =
                    BoolTensor({7, 5}, std::string(35, '\1'));
              }),
      Forward("MaskOfRank5", "INVALID_ARGUMENT BAD_MASK masks.attention_mask",
              [](auto* r) {
                *r->mutable_masks()->mutable_attention_mask() =
                    BoolTensor({1, 1, 1, 4, 4}, std::string(16, '\1'));
              }),
      Forward("MissingContext", "FAILED_PRECONDITION LAYER_NEEDS_CONTEXT",
              [](auto* r) {
                r->set_model("cross");
                *r->mutable_x() = RandomTensor({1, 2, 8}, 1);
              }),
      Forward("NaNInput", "OK",
              [](auto* r) {
                *r->mutable_x() = FloatTensor({1, 1, 16}, std::vector<float>(16, kNan));
              }),
      Forward("PositionBeyondAnyTable", "INVALID_ARGUMENT BAD_OPTION positions",
              [](auto* r) {
                *r->mutable_positions() = Int64Tensor({4}, {0, 1, 2, INT64_MAX});
              }),
      Forward("NaNDropout", "INVALID_ARGUMENT BAD_OPTION dropout.p",
              [](auto* r) { r->mutable_dropout()->set_p(kNan); }),
      Attend("NaNScale", "INVALID_ARGUMENT BAD_OPTION options.scale",
             [](auto* r) { r->mutable_options()->set_scale(kNan); }),
      Attend("HeadsThatDoNotDivide", "INVALID_ARGUMENT BAD_SHAPE kv_head_count",
             [](auto* r) {
               *r->mutable_q() = RandomTensor({1, 3, 3, 4}, 1);
             }),
      Attend("AbsurdWindow", "INVALID_ARGUMENT BAD_OPTION options.window.left",
             [](auto* r) { r->mutable_options()->mutable_window()->set_left(INT64_MIN); }),
      Attend("AbsurdHeadCounts", "INVALID_ARGUMENT TOO_LARGE head_count",
             [](auto* r) {
               for (auto* t : {r->mutable_q(), r->mutable_k(), r->mutable_v()}) {
                 *t = FloatTensor({1, 0, int64_t{1} << 40}, {});
               }
               r->set_head_count(int64_t{1} << 40);
               r->set_kv_head_count(int64_t{1} << 40);
             }),
      Attend("NoHeads", shape_of_q,
             [](auto* r) {
               for (auto* t : {r->mutable_q(), r->mutable_k(), r->mutable_v()}) {
                 *t = FloatTensor({1, 0, 3, 4}, {});
               }
             }),
      Attend("NoKeyValueHeads", "INVALID_ARGUMENT BAD_SHAPE k",
             [](auto* r) {
               for (auto* t : {r->mutable_k(), r->mutable_v()}) {
                 *t = FloatTensor({1, 0, 4000000, 4}, {});
               }
             }),
      Attend("NoKeyElements", shape_of_q,
             [](auto* r) {
               for (auto* t : {r->mutable_q(), r->mutable_k()}) {
                 *t = FloatTensor({1, 2, 3, 0}, {});
               }
             }),
      Attend("NoValueElements", "INVALID_ARGUMENT BAD_SHAPE v",
             [](auto* r) {
               *r->mutable_v() = FloatTensor({1, 2, 3, 0}, {});
             }),
      Attend("EmptySequencesWithoutEnd", "OK",
             [](auto* r) {
               for (auto* t : {r->mutable_q(), r->mutable_k(), r->mutable_v()}) {
                 *t = FloatTensor({int64_t{1} << 50, 1, 0, 4}, {});
               }
             }),
      Attend("HeadCountThatOverflows", "INVALID_ARGUMENT TOO_LARGE kv_head_count",
             [](auto* r) {
               for (auto* t : {r->mutable_q(), r->mutable_k(), r->mutable_v()}) {
                 *t = RandomTensor({1, 3, 8}, 1);
               }
               r->set_head_count(2);
               r->set_kv_head_count(int64_t{1} << 61);
             }),
      Attend("TooManyScores", "INVALID_ARGUMENT TOO_LARGE q",
             [](auto* r) {
               const std::vector<float> row(200000, 0.5f);
               for (auto* t : {r->mutable_q(), r->mutable_k(), r->mutable_v()}) {
                 *t = FloatTensor({1, 1, 200000, 1}, row);
               }
             }),
  };
}

// Both servers live through all cases: what harm one does shows in those after it too.
class BadRequest : public ::testing::TestWithParam<BadCase> {
 protected:
  static void SetUpTestSuite() {
    clean_ = new TestServer;
    attacked_ = new TestServer;
    undisturbed_ = clean_->TinySession();
    session_ = attacked_->TinySession();
    seed_ = 0;
  }
  static void TearDownTestSuite() {
    delete attacked_;
    delete clean_;
  }

  static inline TestServer *clean_, *attacked_;
  static inline std::string undisturbed_, session_;
  static inline uint32_t seed_;
};

TEST_P(BadRequest, IsRefusedAndHarmsNobody) {
  const grpc::Status status = GetParam().send(*attacked_);
  EXPECT_EQ(Summary(status), GetParam().expected) << status.error_message();
  ++seed_;
  EXPECT_EQ(Decode(*attacked_, TinyStep(session_, 1, seed_)).SerializeAsString(),
            Decode(*clean_, TinyStep(undisturbed_, 1, seed_)).SerializeAsString());
}

INSTANTIATE_TEST_SUITE_P(Cases, BadRequest, ::testing::ValuesIn(BadCases()),
                         [](const auto& info) { return info.param.name; });

TEST(BadInput, MaskedNansDoNotReachTheOutput) {
  TestServer server;
  v1::AttendRequest request;
  *request.mutable_q() = RandomTensor({1, 2, 3, 4}, 1);
  *request.mutable_k() = RandomTensor({1, 2, 5, 4}, 2);
  *request.mutable_v() = RandomTensor({1, 2, 5, 4}, 3);
  *request.mutable_masks()->mutable_lengths() = Int64Tensor({1}, {4});
  const auto output = [&] {
    v1::AttendResponse response;
    grpc::ClientContext context;
    const grpc::Status status = server.attention().Attend(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.output().data();
  };
  const std::string expected = output();
  for (auto* tensor : {request.mutable_k(), request.mutable_v()}) {
    std::vector<float> values = Floats(*tensor);
    for (const size_t head : {0u, 1u}) {
      for (size_t i = 0; i < 4; ++i) values[(head * 5 + 4) * 4 + i] = kNan;
    }
    *tensor = FloatTensor({1, 2, 5, 4}, values);
  }
  EXPECT_EQ(output(), expected);
}

TEST(BadInput, OversizeMessageIsRefusedByGrpc) {
  TestServer server([](ServerOptions* options) { options->max_message_bytes = 1 << 20; });
  const std::string session = server.TinySession();
  v1::DecodeResponse response;
  grpc::ClientContext context;
  const grpc::Status status =
      server.attention().Decode(&context, TinyStep(session, 20000, 1), &response);
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ErrorOf(status).reason, "");

  // On a stream it ends the stream; what came before is answered or not, but never half.
  grpc::ClientContext stream_context;
  const auto stream = server.attention().StreamDecode(&stream_context);
  v1::StreamDecodeRequest message;
  *message.mutable_step() = TinyStep(session, 2, 1);
  stream->Write(message);
  *message.mutable_step() = TinyStep(session, 20000, 1);
  stream->Write(message);
  v1::StreamDecodeResponse reply;
  while (stream->Read(&reply)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(WaitFor(
      [&] { return server.Metric("attnserve_rpc_in_flight{method=\"StreamDecode\"}") == 0; }));
  EXPECT_EQ(Decode(server, TinyStep(session, 1, 1)).position() % 2, 0);
}

// A thousand times smaller than what it says: its size could be checked only after the damage.
TEST(BadInput, CompressedMessagesAreRefused) {
  TestServer server;
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    v1::ForwardRequest request;
    request.set_model("tiny");
    *request.mutable_x() = FloatTensor({1, 4, kTinyWidth}, std::vector<float>(4 * kTinyWidth));
    v1::ForwardResponse response;
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    const grpc::Status status = server.attention().Forward(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED);
    EXPECT_NE(status.error_message().find("ompression"), std::string::npos)
        << status.error_message();
  }
  EXPECT_EQ(server.TinySession().size(), 32u);
}

TEST(BadInput, BytesThatAreNoMessageAreRefused) {
  TestServer server;
  for (const char* method :
       {"/attnserve.v1.AttentionService/Decode", "/attnserve.v1.AttentionService/DecodeBatch",
        "/attnserve.v1.SessionService/CreateSession", "/attnserve.v1.ModelService/GetModel"}) {
    grpc::GenericStub stub(server.channel());
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const std::string garbage = "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01 garbage";
    const grpc::Slice slice(garbage);
    const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    // gRPC's own answer of a callback service to what it cannot parse.
    EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED) << method << status.error_message();
  }
  EXPECT_EQ(server.TinySession().size(), 32u);
}

// A session whose outputs of 1024 elements answer queries of one: replies far larger than requests.
std::string WideSession(TestServer& server) {
  v1::CreateSessionRequest create;
  v1::LayerSpec* layer = create.mutable_core()->add_layers();
  layer->set_kind(v1::LAYER_KIND_CORE_ATTENTION);
  layer->set_key_head_size(1);
  layer->set_value_head_size(1024);
  v1::CreateSessionResponse created;
  grpc::ClientContext context;
  EXPECT_TRUE(server.sessions().CreateSession(&context, create, &created).ok());
  return created.session().session_id();
}

TEST(BadInput, RepliesThatDoNotFitAMessageAreRefusedBeforeTheWork) {
  TestServer server([](ServerOptions* options) { options->max_message_bytes = 256 << 10; });
  v1::GetServerInfoResponse info;
  grpc::ClientContext info_context;
  ASSERT_TRUE(server.models().GetServerInfo(&info_context, v1::GetServerInfoRequest(), &info).ok());
  EXPECT_LT(info.max_reply_bytes(), info.max_message_bytes());
  const int64_t rows = info.max_reply_bytes() / 4096;  // a row of the reply takes 4 KiB
  v1::DecodeRequest step;
  step.set_session_id(WideSession(server));
  *step.mutable_q() = RandomTensor({1, 1, rows + 1, 1}, 1);
  *step.mutable_k() = RandomTensor({1, 1, 1, 1}, 1);
  *step.mutable_v() = RandomTensor({1, 1, 1, 1024}, 1);
  v1::DecodeResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(Summary(server.attention().Decode(&context, step, &response)),
            "RESOURCE_EXHAUSTED RESPONSE_TOO_LARGE");
  *step.mutable_q() = RandomTensor({1, 1, rows, 1}, 1);
  EXPECT_EQ(Decode(server, step).position(), 0);  // the refused step left nothing behind
}

// F16 elements that come as `values` go back as floats, twice their size.
TEST(BadInput, RepliesInValuesAreCountedAsFloats) {
  TestServer server([](ServerOptions* options) { options->max_message_bytes = 256 << 10; });
  const auto half = [](const std::vector<int64_t>& shape, size_t count) {
    v1::Tensor tensor;
    tensor.set_dtype(v1::DTYPE_F16);
    tensor.mutable_shape()->Assign(shape.begin(), shape.end());
    for (size_t i = 0; i < count; ++i) tensor.add_values(0.5f);
    return tensor;
  };
  v1::DecodeRequest step;
  step.set_session_id(WideSession(server));
  *step.mutable_q() = half({1, 1, 100, 1}, 100);
  *step.mutable_k() = half({1, 1, 1, 1}, 1);
  *step.mutable_v() = half({1, 1, 1, 1024}, 1024);
  v1::DecodeResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(Summary(server.attention().Decode(&context, step, &response)),
            "RESOURCE_EXHAUSTED RESPONSE_TOO_LARGE");
  *step.mutable_q() = half({1, 1, 40, 1}, 40);
  EXPECT_EQ(Decode(server, step).position(), 0);
}

TEST(BadInput, ErrorsOfABatchFitItsMessage) {
  TestServer server([](ServerOptions* options) { options->max_message_bytes = 64 << 10; });
  v1::DecodeBatchRequest batch;
  *batch.add_steps() = TinyStep(server.TinySession(), 1, 1);
  for (int i = 0; i < 30; ++i)
    *batch.add_steps() = TinyStep(std::string(500, 'x') + std::to_string(i), 1, 1);
  v1::DecodeBatchResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.attention().DecodeBatch(&context, batch, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Summary(response.results(0).status()), "OK");
  EXPECT_EQ(Summary(response.results(30).status()), "NOT_FOUND SESSION_NOT_FOUND");
  for (int i = 0; i < 30; ++i) *batch.add_steps() = batch.steps(1);
  grpc::ClientContext second;
  EXPECT_EQ(Summary(server.attention().DecodeBatch(&second, batch, &response)),
            "INVALID_ARGUMENT TOO_LARGE steps");
}

TEST(BadInput, AbsurdReservationsLeaveTheBudgetAlone) {
  TestServer server;
  for (const int64_t tokens : {(int64_t{1} << 55) + 2048, int64_t{1} << 54, int64_t{1} << 62,
                               std::numeric_limits<int64_t>::max()}) {
    v1::CreateSessionRequest create;
    v1::LayerSpec* layer = create.mutable_core()->add_layers();
    layer->set_kind(v1::LAYER_KIND_CORE_ATTENTION);
    layer->set_key_head_size(64);
    create.set_max_tokens(tokens);
    create.set_reserve(true);
    v1::CreateSessionResponse created;
    grpc::ClientContext context;
    EXPECT_EQ(Summary(server.sessions().CreateSession(&context, create, &created)),
              "RESOURCE_EXHAUSTED KV_BUDGET")
        << tokens;
    EXPECT_EQ(server.Metric("attnserve_rpc_in_flight{method=\"CreateSession\"}"), 0);
  }
  Decode(server, TinyStep(server.TinySession(), 1, 1));
}

TEST(BadInput, StepsOfABatchShareTheMessageTheirRepliesComeIn) {
  TestServer server([](ServerOptions* options) { options->max_message_bytes = 256 << 10; });
  v1::DecodeBatchRequest batch;
  constexpr int kSteps = 12;
  for (int i = 0; i < kSteps; ++i) {
    v1::DecodeRequest step = CoreStep(server.CoreSession(), 1, 1);
    // 16 KiB in and out, and as much for the context stage.
    *step.mutable_q() = RandomTensor({1, 4, 128, 8}, 1);
    step.add_stages(v1::STAGE_CONTEXT);
    *batch.add_steps() = step;
  }
  v1::DecodeBatchResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.attention().DecodeBatch(&context, batch, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  int fitting = 0;
  for (int i = 0; i < kSteps; ++i) {
    const std::string summary = Summary(response.results(i).status());
    fitting += summary == "OK" ? 1 : 0;
    if (summary == "OK") continue;
    EXPECT_EQ(summary, "RESOURCE_EXHAUSTED RESPONSE_TOO_LARGE");
    v1::DecodeRequest again = batch.steps(i);
    EXPECT_EQ(Decode(server, again).position(), 0);  // refused and not applied
  }
  // 32 KiB each of less than 256.
  EXPECT_EQ(fitting, 7);
}

}  // namespace
}  // namespace attnserve::testing
