// A list of bad input, sent while a good session decodes: the server stays up, answers each with an
// error, and the session's outputs are those of a session on a server that saw none of it.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/rpc/test_server.h"

namespace attnserve::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

v1::DecodeResponse Decode(TestServer& server, const v1::DecodeRequest& request) {
  v1::DecodeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.attention().Decode(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

struct BadCase {
  std::string name;
  std::function<grpc::Status(TestServer&)> send;
  std::string expected;  // Summary; "OK" where bad numbers are legal
};

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
                    size = "INVALID_ARGUMENT SIZE_MISMATCH x";
  return {
      Forward("rank 0", shape, [](auto* r) { *r->mutable_x() = FloatTensor({}, {1}); }),
      Forward("rank 2", shape,
              [](auto* r) {
                SetShape(r->mutable_x(), {4, kTinyWidth});
              }),
      Forward("rank 9", shape,
              [](auto* r) {
                SetShape(r->mutable_x(), {1, 1, 1, 1, 1, 1, 1, 4, kTinyWidth});
              }),
      Forward("too few bytes", size, [](auto* r) { r->mutable_x()->mutable_data()->resize(7); }),
      Forward("too many bytes", size,
              [](auto* r) { r->mutable_x()->mutable_data()->append("abcd"); }),
      Forward("zero batch", shape,
              [](auto* r) {
                *r->mutable_x() = FloatTensor({0, 4, 16}, {});
              }),
      Forward("zero width", shape,
              [](auto* r) {
                *r->mutable_x() = FloatTensor({1, 4, 0}, {});
              }),
      Forward("negative dimension", shape,
              [](auto* r) {
                SetShape(r->mutable_x(), {1, -4, -16});
              }),
      Forward("overflowing dimensions", "INVALID_ARGUMENT TOO_LARGE x",
              [](auto* r) {
                SetShape(r->mutable_x(), {1, int64_t{1} << 61, 16});
              }),
      Forward("product that wraps to the right size", "INVALID_ARGUMENT TOO_LARGE x",
              [](auto* r) {
                SetShape(r->mutable_x(), {int64_t{1} << 32, int64_t{1} << 32, 64});
              }),
      Forward("2^31 rows", size,
              [big](auto* r) {
                SetShape(r->mutable_x(), {1, big, 1});
              }),
      Forward("2^31 empty rows", shape,
              [big](auto* r) {
                *r->mutable_x() = FloatTensor({1, big, 0}, {});
              }),
      Forward("unknown dtype", "INVALID_ARGUMENT BAD_DTYPE x.dtype",
              [](auto* r) { r->mutable_x()->set_dtype(static_cast<v1::DType>(42)); }),
      Forward("mask of another shape", "INVALID_ARGUMENT BAD_MASK masks.attention_mask",
              [](auto* r) {
                *r->mutable_masks()->mutable_attention_mask() =
                    BoolTensor({7, 5}, std::string(35, '\1'));
              }),
      Forward("mask of rank 5", "INVALID_ARGUMENT BAD_MASK masks.attention_mask",
              [](auto* r) {
                *r->mutable_masks()->mutable_attention_mask() =
                    BoolTensor({1, 1, 1, 4, 4}, std::string(16, '\1'));
              }),
      Forward("missing context", "FAILED_PRECONDITION LAYER_NEEDS_CONTEXT",
              [](auto* r) {
                r->set_model("cross");
                *r->mutable_x() = RandomTensor({1, 2, 8}, 1);
              }),
      Forward("NaN input", "OK",
              [](auto* r) {
                *r->mutable_x() = FloatTensor({1, 1, 16}, std::vector<float>(16, kNan));
              }),
      Forward("position beyond any table", "INVALID_ARGUMENT BAD_OPTION positions",
              [](auto* r) {
                *r->mutable_positions() = Int64Tensor({4}, {0, 1, 2, INT64_MAX});
              }),
      Forward("NaN dropout", "INVALID_ARGUMENT BAD_OPTION dropout.p",
              [](auto* r) { r->mutable_dropout()->set_p(kNan); }),
      Attend("NaN scale", "INVALID_ARGUMENT BAD_OPTION options.scale",
             [](auto* r) { r->mutable_options()->set_scale(kNan); }),
      Attend("heads that do not divide", "INVALID_ARGUMENT BAD_SHAPE kv_head_count",
             [](auto* r) {
               *r->mutable_q() = RandomTensor({1, 3, 3, 4}, 1);
             }),
      Attend("absurd window", "INVALID_ARGUMENT BAD_OPTION options.window.left",
             [](auto* r) { r->mutable_options()->mutable_window()->set_left(INT64_MIN); }),
      Attend("absurd head counts", "INVALID_ARGUMENT TOO_LARGE head_count",
             [](auto* r) {
               for (auto* t : {r->mutable_q(), r->mutable_k(), r->mutable_v()}) {
                 *t = FloatTensor({1, 0, int64_t{1} << 40}, {});
               }
               r->set_head_count(int64_t{1} << 40);
               r->set_kv_head_count(int64_t{1} << 40);
             }),
      Attend("too many scores", "INVALID_ARGUMENT TOO_LARGE shape",
             [](auto* r) {
               const std::vector<float> row(200000, 0.5f);
               for (auto* t : {r->mutable_q(), r->mutable_k(), r->mutable_v()}) {
                 *t = FloatTensor({1, 1, 200000, 1}, row);
               }
             }),
  };
}

TEST(BadInput, IsRefusedAndHarmsNobody) {
  TestServer clean, attacked;
  const std::string undisturbed = clean.TinySession(), session = attacked.TinySession();
  uint32_t seed = 0;
  const auto compare = [&](const std::string& after) {
    ++seed;
    EXPECT_EQ(Decode(attacked, TinyStep(session, 1, seed)).SerializeAsString(),
              Decode(clean, TinyStep(undisturbed, 1, seed)).SerializeAsString())
        << after;
  };
  compare("the start");
  for (const BadCase& bad : BadCases()) {
    const grpc::Status status = bad.send(attacked);
    EXPECT_EQ(Summary(status), bad.expected) << bad.name << ": " << status.error_message();
    compare(bad.name);
  }
}

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

TEST(BadInput, RepliesThatDoNotFitAMessageAreRefusedBeforeTheWork) {
  TestServer server([](ServerOptions* options) { options->max_message_bytes = 256 << 10; });
  const std::string session = server.CoreSession();
  // Values of one element against outputs of 1024: the reply would be larger than any message.
  v1::CreateSessionRequest create;
  v1::LayerSpec* layer = create.mutable_core()->add_layers();
  layer->set_kind(v1::LAYER_KIND_CORE_ATTENTION);
  layer->set_key_head_size(1);
  layer->set_value_head_size(1024);
  v1::CreateSessionResponse created;
  grpc::ClientContext create_context;
  ASSERT_TRUE(server.sessions().CreateSession(&create_context, create, &created).ok());
  v1::DecodeRequest step;
  step.set_session_id(created.session().session_id());
  *step.mutable_q() = RandomTensor({1, 1, 100, 1}, 1);
  *step.mutable_k() = RandomTensor({1, 1, 1, 1}, 1);
  *step.mutable_v() = RandomTensor({1, 1, 1, 1024}, 1);
  v1::DecodeResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(Summary(server.attention().Decode(&context, step, &response)),
            "RESOURCE_EXHAUSTED RESPONSE_TOO_LARGE");
  *step.mutable_q() = RandomTensor({1, 1, 40, 1}, 1);
  EXPECT_EQ(Decode(server, step).position(), 0);  // the refused step left nothing behind
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
