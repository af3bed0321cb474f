// StreamDecode: order, failures, half-close, cancellation, flow control.
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/rpc/test_server.h"

namespace attnserve::testing {
namespace {

using Stream = grpc::ClientReaderWriter<v1::StreamDecodeRequest, v1::StreamDecodeResponse>;

v1::StreamDecodeRequest Message(int64_t correlation_id, const v1::DecodeRequest& step) {
  v1::StreamDecodeRequest request;
  request.set_correlation_id(correlation_id);
  *request.mutable_step() = step;
  return request;
}

int64_t LengthOf(TestServer& server, const std::string& id) {
  v1::GetSessionRequest request;
  request.set_session_id(id);
  v1::GetSessionResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.sessions().GetSession(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.session().min_length();
}

TEST(StreamDecode, RepliesComeInOrderWithinASession) {
  TestServer server;
  constexpr int kSessions = 3, kSteps = 40;
  std::vector<std::string> ids;
  for (int i = 0; i < kSessions; ++i) ids.push_back(server.TinySession());
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = server.attention().StreamDecode(&context);
  for (int i = 0; i < kSteps * kSessions; ++i) {
    ASSERT_TRUE(stream->Write(Message(
        i, TinyStep(ids[static_cast<size_t>(i % kSessions)], 1, static_cast<uint32_t>(i)))));
  }
  ASSERT_TRUE(stream->WritesDone());
  v1::StreamDecodeResponse reply;
  std::map<int64_t, int64_t> next;
  int count = 0;
  for (; stream->Read(&reply); ++count) {
    EXPECT_EQ(Summary(reply.result().status()), "OK");
    const int64_t session = reply.correlation_id() % kSessions;
    EXPECT_EQ(reply.correlation_id() / kSessions, next[session]);
    EXPECT_EQ(reply.result().response().position(), next[session]);
    ++next[session];
  }
  EXPECT_EQ(count, kSteps * kSessions);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StreamDecode, OutputsEqualThoseOfDecode) {
  TestServer server;
  const std::string streamed = server.TinySession(), single = server.TinySession();
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = server.attention().StreamDecode(&context);
  for (uint32_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(stream->Write(Message(i, TinyStep(streamed, 2, i))));
    v1::StreamDecodeResponse reply;
    ASSERT_TRUE(stream->Read(&reply));
    v1::DecodeResponse expected;
    grpc::ClientContext decode_context;
    ASSERT_TRUE(server.attention().Decode(&decode_context, TinyStep(single, 2, i), &expected).ok());
    EXPECT_EQ(reply.result().response().SerializeAsString(), expected.SerializeAsString());
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StreamDecode, FollowersOfAFailedStepFailUntilOneSaysWhereItIs) {
  TestServer server;
  const std::string bad = server.TinySession(), good = server.TinySession();
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = server.attention().StreamDecode(&context);
  std::vector<v1::DecodeRequest> steps(9, TinyStep(bad, 1, 1));
  steps[1].mutable_x()->mutable_data()->pop_back();
  steps[3] = TinyStep(good, 1, 1);
  steps[4].mutable_x()->set_dtype(v1::DTYPE_UNSPECIFIED);
  steps[5].set_expected_position(1);
  steps[7].set_expected_position(1);
  const std::vector<std::string> expected = {
      "OK",
      "INVALID_ARGUMENT SIZE_MISMATCH step.x",
      "ABORTED PREDECESSOR_FAILED",
      "OK",
      "ABORTED PREDECESSOR_FAILED",
      "OK",
      "OK",
      "ABORTED POSITION_CONFLICT",
      "ABORTED PREDECESSOR_FAILED",
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    ASSERT_TRUE(stream->Write(Message(static_cast<int64_t>(i), steps[i])));
  }
  stream->WritesDone();
  std::map<int64_t, v1::DecodeResult> results;
  v1::StreamDecodeResponse reply;
  while (stream->Read(&reply)) results[reply.correlation_id()] = reply.result();
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(results.size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const v1::DecodeResult& result = results[static_cast<int64_t>(i)];
    EXPECT_EQ(Summary(result.status()), expected[i]) << i;
    EXPECT_EQ(result.has_response(), expected[i] == "OK") << i;
  }
  EXPECT_EQ(LengthOf(server, bad), 3);
}

TEST(StreamDecode, FailureIsRememberedBetweenMessages) {
  TestServer server;
  const std::string id = server.TinySession();
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = server.attention().StreamDecode(&context);
  const auto ask = [&](const v1::DecodeRequest& step) {
    v1::StreamDecodeResponse reply;
    EXPECT_TRUE(stream->Write(Message(0, step)) && stream->Read(&reply));
    return Summary(reply.result().status());
  };
  v1::DecodeRequest wrong = TinyStep(id, 1, 1);
  wrong.set_expected_position(5);
  EXPECT_EQ(ask(wrong), "OUT_OF_RANGE POSITION_BEYOND_LENGTH");
  EXPECT_EQ(ask(TinyStep(id, 1, 1)), "ABORTED PREDECESSOR_FAILED");
  EXPECT_EQ(ask(TinyStep(id, 1, 1)), "ABORTED PREDECESSOR_FAILED");
  v1::DecodeRequest right = TinyStep(id, 1, 1);
  right.set_expected_position(0);
  EXPECT_EQ(ask(right), "OK");
  EXPECT_EQ(ask(TinyStep(id, 1, 1)), "OK");
  v1::StreamDecodeRequest empty;
  v1::StreamDecodeResponse reply;
  ASSERT_TRUE(stream->Write(empty) && stream->Read(&reply));
  EXPECT_EQ(Summary(reply.result().status()), "INVALID_ARGUMENT BAD_OPTION step.session_id");
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StreamDecode, HalfCloseAnswersWhatIsOutstanding) {
  TestServer server;
  const std::string id = server.TinySession();
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = server.attention().StreamDecode(&context);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(stream->Write(Message(i, TinyStep(id, 50, 1))));
  ASSERT_TRUE(stream->WritesDone());
  v1::StreamDecodeResponse reply;
  int count = 0;
  while (stream->Read(&reply)) ++count;
  EXPECT_EQ(count, 20);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StreamDecode, EmptyStreamEndsWithOk) {
  TestServer server;
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = server.attention().StreamDecode(&context);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StreamDecode, CancellationDropsWhatHasNotStarted) {
  TestServer server;
  const std::string id = server.TinySession();
  for (int round = 0; round < 20; ++round) {
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = server.attention().StreamDecode(&context);
    for (int i = 0; i < 30; ++i) stream->Write(Message(i, TinyStep(id, 3, 1)));
    if (round % 2 == 1) {
      v1::StreamDecodeResponse reply;
      stream->Read(&reply);
    }
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  }
  EXPECT_TRUE(WaitFor(
      [&] { return server.Metric("attnserve_rpc_in_flight{method=\"StreamDecode\"}") == 0; }));
  EXPECT_EQ(LengthOf(server, id) % 3, 0);  // whole steps only
  v1::DecodeResponse response;
  grpc::ClientContext context;
  EXPECT_TRUE(server.attention().Decode(&context, TinyStep(id, 1, 1), &response).ok());
}

TEST(StreamDecode, CancelledIdleStreamEnds) {
  TestServer server;
  {
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = server.attention().StreamDecode(&context);
    EXPECT_TRUE(WaitFor(
        [&] { return server.Metric("attnserve_rpc_in_flight{method=\"StreamDecode\"}") == 1; }));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  }
  EXPECT_TRUE(WaitFor(
      [&] { return server.Metric("attnserve_rpc_in_flight{method=\"StreamDecode\"}") == 0; }));
}

TEST(StreamDecode, DeadlineEndsTheStream) {
  TestServer server;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  const std::unique_ptr<Stream> stream = server.attention().StreamDecode(&context);
  v1::StreamDecodeResponse reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_TRUE(WaitFor(
      [&] { return server.Metric("attnserve_rpc_in_flight{method=\"StreamDecode\"}") == 0; }));
}

// A client that sends and does not read: the server stops after 64 outstanding steps.
TEST(StreamDecode, ServerStopsReadingWhileTheClientDoesNot) {
  TestServer server;
  const std::string id = server.CoreSession();
  grpc::ChannelArguments arguments;
  // Fixed windows of 64 KiB, so that few replies fit into them.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::AttentionService::NewStub(
      grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = stub->StreamDecode(&context);
  constexpr int kSteps = 200;
  std::thread writer([&] {
    // 1000 queries and one key: replies of 125 KiB.
    v1::DecodeRequest step = CoreStep(id, 1, 1);
    *step.mutable_q() = RandomTensor({1, 4, 1000, 8}, 1);
    for (int i = 0; i < kSteps; ++i) EXPECT_TRUE(stream->Write(Message(i, step)));
    stream->WritesDone();
  });
  // Until the number of applied steps has not changed for half a second.
  int64_t applied = 0;
  int quiet = 0;
  while (quiet < 50) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const int64_t now = LengthOf(server, id);
    quiet = now == applied && now > 0 ? quiet + 1 : 0;
    applied = now;
  }
  EXPECT_GE(applied, 64);
  EXPECT_LE(applied, 64 + 4);  // those whose replies wait in the windows count as answered
  v1::StreamDecodeResponse reply;
  int count = 0;
  for (; stream->Read(&reply); ++count) EXPECT_EQ(reply.correlation_id(), count);
  writer.join();
  EXPECT_EQ(count, kSteps);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StreamDecode, ManyStreamsShareTheServer) {
  TestServer server;
  constexpr uint32_t kStreams = 8;
  static constexpr int kSteps = 25;
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < kStreams; ++c) {
    clients.emplace_back([&server, c] {
      const std::string id = server.TinySession();
      grpc::ClientContext context;
      const std::unique_ptr<Stream> stream = server.attention().StreamDecode(&context);
      for (int i = 0; i < kSteps; ++i) {
        stream->Write(Message(i, TinyStep(id, 1, c + static_cast<uint32_t>(i))));
      }
      stream->WritesDone();
      v1::StreamDecodeResponse reply;
      int count = 0;
      for (; stream->Read(&reply); ++count) EXPECT_EQ(reply.correlation_id(), count);
      EXPECT_EQ(count, kSteps);
      EXPECT_TRUE(stream->Finish().ok());
    });
  }
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace attnserve::testing
