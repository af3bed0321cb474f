// Steps prepared by sessions and sent together, on the real server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "attnserve/client/client.h"
#include "tests/rpc/test_server.h"

namespace attnserve::client {
namespace {

using attnserve::testing::kTinyWidth;
using attnserve::testing::RandomTensor;
using attnserve::testing::TestServer;

class BatchTest : public ::testing::Test {
 protected:
  Session NewSession() {
    v1::CreateSessionRequest request;
    request.set_model("tiny");
    return client_.CreateSession(request).value();
  }
  // Adds a step of `tokens` tokens to the batch.
  void Add(Session& session, int64_t tokens, int64_t width = kTinyWidth) {
    v1::DecodeRequest& step = *batch_.add_steps();
    *step.mutable_x() = RandomTensor({1, tokens, width}, 1);
    session.Prepare(&step);
  }

  TestServer server_;
  Client client_ = Client::Connect(server_.address()).value();
  v1::DecodeBatchRequest batch_;
};

TEST_F(BatchTest, StepsOfOneSessionFollowEachOther) {
  Session a = NewSession(), b = NewSession();
  Add(a, 2);
  Add(b, 1);
  Add(a, 3);
  EXPECT_EQ(a.length(0), 5) << "counted as applied";
  const auto outcomes = client_.DecodeBatch(batch_);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  ASSERT_EQ(outcomes->size(), 3u);
  EXPECT_EQ((*outcomes)[0]->length(), 2);
  EXPECT_EQ((*outcomes)[1]->length(), 1);
  EXPECT_EQ((*outcomes)[2]->length(), 5);
  a.Settle(batch_.steps(0), (*outcomes)[0]);
  a.Settle(batch_.steps(2), (*outcomes)[2]);
  EXPECT_EQ(a.length(0), 5);
  EXPECT_EQ(client_.GetSession(a.id())->min_length(), 5);
}

TEST_F(BatchTest, SettlingAFailureTakesItAndItsFollowersBack) {
  Session a = NewSession();
  Add(a, 2);
  Add(a, 1, kTinyWidth + 1);
  Add(a, 3);
  const auto outcomes = client_.DecodeBatch(batch_);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_TRUE((*outcomes)[0].ok()) << (*outcomes)[0].status();
  EXPECT_EQ(ErrorReason((*outcomes)[1].status()), "BAD_SHAPE");
  EXPECT_FALSE((*outcomes)[2].ok());
  for (int i = 0; i < 3; ++i) a.Settle(batch_.steps(i), (*outcomes)[static_cast<size_t>(i)]);
  EXPECT_EQ(a.length(0), 2);
  v1::DecodeRequest next;
  *next.mutable_x() = RandomTensor({1, 1, kTinyWidth}, 2);
  EXPECT_EQ(a.Decode(next)->position(), 2);
}

TEST_F(BatchTest, SameBatchAgainAppendsNothing) {
  Session a = NewSession();
  Add(a, 2);
  ASSERT_TRUE(client_.DecodeBatch(batch_).ok());
  const auto again = client_.DecodeBatch(batch_);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE((*again)[0]->replayed());
  EXPECT_EQ(client_.GetSession(a.id())->min_length(), 2);
}

}  // namespace
}  // namespace attnserve::client
