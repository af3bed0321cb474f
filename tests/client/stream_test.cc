// Pipelined steps on the real server.
#include "attnserve/client/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

#include "attnserve/client/client.h"
#include "tests/rpc/test_server.h"

namespace attnserve::client {
namespace {

using attnserve::testing::kTinyWidth;
using attnserve::testing::RandomTensor;
using attnserve::testing::TestServer;

using Future = std::future<absl::StatusOr<v1::DecodeResponse>>;

class StreamTest : public ::testing::Test {
 protected:
  Session NewSession() {
    v1::CreateSessionRequest request;
    request.set_model("tiny");
    return client_.CreateSession(request).value();
  }
  static v1::DecodeRequest Step(Session& session, uint32_t seed, int64_t width = kTinyWidth) {
    v1::DecodeRequest step;
    *step.mutable_x() = RandomTensor({1, 1, width}, seed);
    session.Prepare(&step);
    return step;
  }

  TestServer server_;
  Client client_ = Client::Connect(server_.address()).value();
};

TEST_F(StreamTest, PipelinedStepsGiveTheBitsOfUnaryOnes) {
  constexpr uint32_t kSteps = 200;  // more than may be outstanding
  Session piped = NewSession(), single = NewSession();
  const auto stream = client_.OpenStream();
  std::vector<Future> futures;
  for (uint32_t i = 0; i < kSteps; ++i) futures.push_back(stream->Send(Step(piped, i)));
  EXPECT_TRUE(stream->Close().ok());
  for (uint32_t i = 0; i < kSteps; ++i) {
    const auto reply = futures[i].get();
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->position(), i);
    v1::DecodeRequest step;
    *step.mutable_x() = RandomTensor({1, 1, kTinyWidth}, i);
    EXPECT_EQ(single.Decode(step)->output().data(), reply->output().data()) << i;
  }
}

TEST_F(StreamTest, ThreadsShareAStream) {
  constexpr int kThreads = 4;
  constexpr uint32_t kSteps = 50;
  const auto stream = client_.OpenStream();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      Session session = NewSession();
      for (uint32_t step = 0; step < kSteps; ++step) {
        const auto reply = stream->Send(Step(session, step)).get();
        ASSERT_TRUE(reply.ok()) << reply.status();
        EXPECT_EQ(reply->length(), step + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(stream->Close().ok());
}

TEST_F(StreamTest, CallbacksOfASessionComeInOrder) {
  Session session = NewSession();
  const auto stream = client_.OpenStream();
  std::mutex mutex;
  std::vector<int64_t> positions;
  for (uint32_t i = 0; i < 100; ++i) {
    stream->Send(Step(session, i), [&](absl::StatusOr<v1::DecodeResponse> reply) {
      const std::lock_guard<std::mutex> lock(mutex);
      positions.push_back(reply.ok() ? reply->position() : -1);
    });
  }
  EXPECT_TRUE(stream->Close().ok());
  ASSERT_EQ(positions.size(), 100u) << "Close waits for the callbacks";
  for (size_t i = 0; i < positions.size(); ++i) {
    EXPECT_EQ(positions[i], static_cast<int64_t>(i));
  }
}

TEST_F(StreamTest, SessionGoesOnAfterAFailedStepIsSettled) {
  Session session = NewSession();
  const auto stream = client_.OpenStream();
  std::vector<v1::DecodeRequest> steps = {Step(session, 1), Step(session, 2, kTinyWidth + 1),
                                          Step(session, 3)};
  std::vector<Future> futures;
  for (const v1::DecodeRequest& step : steps) futures.push_back(stream->Send(step));
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto reply = futures[i].get();
    EXPECT_EQ(reply.ok(), i == 0) << reply.status();
    session.Settle(steps[i], reply);
  }
  EXPECT_EQ(session.length(0), 1);
  const auto next = stream->Send(Step(session, 4)).get();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->position(), 1);
  EXPECT_TRUE(stream->Close().ok());
}

TEST_F(StreamTest, ClosedStreamTakesNoSteps) {
  Session session = NewSession();
  const auto stream = client_.OpenStream();
  EXPECT_TRUE(stream->Close().ok());
  EXPECT_TRUE(stream->Close().ok()) << "again";
  EXPECT_TRUE(absl::IsFailedPrecondition(stream->Send(Step(session, 1)).get().status()));
}

TEST_F(StreamTest, CancelledStreamFailsWhatIsOutstanding) {
  Session session = NewSession();
  const auto stream = client_.OpenStream();
  std::vector<Future> futures;
  for (uint32_t i = 0; i < 500; ++i) {
    futures.push_back(stream->Send(Step(session, i)));
    if (i == 50) stream->Cancel();
  }
  EXPECT_TRUE(absl::IsCancelled(stream->Close()));
  EXPECT_TRUE(absl::IsCancelled(futures.back().get().status()));
  const auto state = client_.GetSession(session.id());
  ASSERT_TRUE(state.ok());
  EXPECT_LT(state->min_length(), 500);
}

TEST_F(StreamTest, OutlivesTheClientObject) {
  Session session = NewSession();
  std::unique_ptr<DecodeStream> stream = Client(client_).OpenStream();
  EXPECT_TRUE(stream->Send(Step(session, 1)).get().ok());
}

}  // namespace
}  // namespace attnserve::client
