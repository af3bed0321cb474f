// Sessions of the client library on the real server.
#include "attnserve/client/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "attnserve/client/client.h"
#include "tests/rpc/test_server.h"

namespace attnserve::client {
namespace {

using attnserve::testing::kTinyWidth;
using attnserve::testing::RandomTensor;
using attnserve::testing::TestServer;
using ::testing::ElementsAreArray;

class SessionTest : public ::testing::Test {
 protected:
  Session TinySession() {
    v1::CreateSessionRequest request;
    request.set_model("tiny");
    return client_.CreateSession(request).value();
  }
  static v1::DecodeRequest Step(int64_t tokens, uint32_t seed, std::optional<int32_t> layer = {}) {
    v1::DecodeRequest step;
    if (layer.has_value()) step.set_layer(*layer);
    *step.mutable_x() = RandomTensor({1, tokens, kTinyWidth}, seed);
    return step;
  }

  TestServer server_;
  Client client_ = Client::Connect(server_.address()).value();
};

TEST_F(SessionTest, DescriptionsComeBack) {
  const auto models = client_.ListModels();
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->size(), 2u);
  EXPECT_EQ((*models)[1].name(), "tiny");
  EXPECT_EQ(client_.GetModel("tiny")->layers_size(), 2);
  EXPECT_EQ(ErrorReason(client_.GetModel("other").status()), "MODEL_NOT_FOUND");
  EXPECT_EQ(client_.GetServerInfo()->thread_count(), 2);
}

TEST_F(SessionTest, EndsWithItsObject) {
  std::string id;
  {
    const Session session = TinySession();
    id = session.id();
    EXPECT_TRUE(client_.GetSession(id).ok());
    EXPECT_GT(session.created().bytes_per_token(), 0);
    EXPECT_EQ(session.layer_count(), 2);
  }
  EXPECT_EQ(ErrorReason(client_.GetSession(id).status()), "SESSION_NOT_FOUND");
  EXPECT_FALSE(client_.DeleteSession(id).value());
}

TEST_F(SessionTest, MovedObjectIsTheOneThatCounts) {
  Session first = TinySession();
  const std::string first_id = first.id();
  {
    Session moved = std::move(first);
    EXPECT_EQ(moved.id(), first_id);
    EXPECT_TRUE(moved.Decode(Step(1, 1)).ok());
  }
  EXPECT_FALSE(client_.GetSession(first_id).ok());
  first = TinySession();
  const std::string second_id = first.id();
  EXPECT_TRUE(client_.GetSession(second_id).ok());
  EXPECT_TRUE(first.Delete().value());
  EXPECT_FALSE(client_.GetSession(second_id).ok());
}

TEST_F(SessionTest, AssignmentEndsTheSessionReplaced) {
  Session session = TinySession();
  const std::string replaced = session.id();
  session = TinySession();
  EXPECT_FALSE(client_.GetSession(replaced).ok());
  EXPECT_TRUE(client_.GetSession(session.id()).ok());
}

TEST_F(SessionTest, DetachedSessionStaysAndIsAttachedAgain) {
  std::string id;
  {
    Session session = TinySession();
    ASSERT_TRUE(session.Decode(Step(3, 1)).ok());
    id = session.Detach();
  }
  {
    Session attached = client_.AttachSession(id).value();
    EXPECT_EQ(attached.length(0), 3);
    const auto reply = attached.Decode(Step(1, 2));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->position(), 3);
  }
  EXPECT_EQ(client_.GetSession(id)->min_length(), 4);
  EXPECT_TRUE(client_.DeleteSession(id).value());
  EXPECT_EQ(ErrorReason(client_.AttachSession(id).status()), "SESSION_NOT_FOUND");
}

TEST_F(SessionTest, LengthsOfLayersAreTracked) {
  Session session = TinySession();
  ASSERT_TRUE(session.Decode(Step(3, 1, 0)).ok());
  EXPECT_EQ(session.length(0), 3);
  EXPECT_EQ(session.length(1), 0);
  ASSERT_TRUE(session.Decode(Step(3, 2, 1)).ok());
  ASSERT_TRUE(session.Decode(Step(2, 3)).ok()) << "all layers";
  EXPECT_EQ(session.length(0), 5);
  EXPECT_EQ(session.length(1), 5);
  ASSERT_TRUE(session.Truncate(4).ok());
  EXPECT_EQ(session.length(1), 4);
  ASSERT_TRUE(session.Decode(Step(1, 4, 1)).ok());
  ASSERT_TRUE(session.ResetCache({1}).ok());
  EXPECT_EQ(session.length(0), 4);
  EXPECT_EQ(session.length(1), 0);
  ASSERT_TRUE(session.ResetCache().ok());
  EXPECT_EQ(session.length(0), 0);
  EXPECT_TRUE(session.Decode(Step(1, 5)).ok());
}

TEST_F(SessionTest, SecondWriterIsNoticed) {
  Session session = TinySession();
  ASSERT_TRUE(session.Decode(Step(2, 1)).ok());
  Session other = client_.AttachSession(session.id()).value();
  ASSERT_TRUE(other.Decode(Step(3, 2)).ok());
  const absl::Status status = session.Decode(Step(1, 3)).status();
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_EQ(ErrorReason(status), "POSITION_CONFLICT");
  EXPECT_EQ(GetErrorInfo(status)->metadata.at("length"), "5");
  EXPECT_EQ(session.GetState()->min_length(), 5);
  EXPECT_EQ(session.length(1), 5);
  EXPECT_TRUE(session.Decode(Step(1, 3)).ok());
}

TEST_F(SessionTest, FailedStepLeavesTheLengths) {
  Session session = TinySession();
  ASSERT_TRUE(session.Decode(Step(2, 1)).ok());
  v1::DecodeRequest bad = Step(1, 2);
  *bad.mutable_x() = RandomTensor({1, 4, kTinyWidth + 1}, 2);
  const absl::Status status = session.Decode(bad).status();
  ASSERT_EQ(GetFieldViolations(status).size(), 1u) << status;
  EXPECT_EQ(GetFieldViolations(status)[0].field, "x");
  EXPECT_EQ(session.length(0), 2);
  EXPECT_EQ(session.Decode(Step(1, 2))->position(), 2);
}

TEST_F(SessionTest, DecodeEqualsForward) {
  Session session = TinySession();
  const v1::Tensor x = RandomTensor({1, 7, kTinyWidth}, 9);
  v1::ForwardRequest request;
  request.set_model("tiny");
  *request.mutable_x() = x;
  const auto whole = client_.Forward(request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const absl::Span<const float> all = F32Values(whole->output()).value();
  const absl::Span<const float> inputs = F32Values(x).value();
  for (int64_t t = 0; t < 7; ++t) {
    v1::DecodeRequest step;
    *step.mutable_x() = F32Tensor(inputs.subspan(static_cast<size_t>(t * kTinyWidth), kTinyWidth),
                                  {1, 1, kTinyWidth});
    const auto reply = session.Decode(std::move(step));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_THAT(F32Values(reply->output()).value(),
                ElementsAreArray(all.subspan(static_cast<size_t>(t * kTinyWidth), kTinyWidth)));
  }
}

TEST_F(SessionTest, CrossAttentionTracksItsQueries) {
  v1::CreateSessionRequest create;
  create.set_model("cross");
  Session session = client_.CreateSession(create).value();
  for (uint32_t i = 0; i < 3; ++i) {
    v1::DecodeRequest step;
    *step.mutable_x() = RandomTensor({1, 2, 8}, i);
    if (i == 0) *step.mutable_context() = RandomTensor({1, 5, 6}, 7);
    const auto reply = session.Decode(std::move(step));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(session.length(0), reply->length());
  }
}

TEST_F(SessionTest, ListShowsTheLivingAndTheEnded) {
  std::string ended;
  {
    const Session session = TinySession();
    ended = session.id();
  }
  const Session a = TinySession(), b = TinySession();
  const auto list = client_.ListSessions(/*show_ended=*/true);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->sessions.size(), 2u);
  ASSERT_EQ(list->ended.size(), 1u);
  EXPECT_EQ(list->ended[0].session_id(), ended);
  EXPECT_TRUE(client_.ListSessions()->ended.empty());
}

TEST_F(SessionTest, ListFollowsThePages) {
  std::vector<Session> sessions;
  for (int i = 0; i < 1003; ++i) sessions.push_back(TinySession());
  EXPECT_EQ(client_.ListSessions()->sessions.size(), 1003u);
}

TEST_F(SessionTest, AttendOverSocket) {
  v1::AttendRequest request;
  *request.mutable_q() = F32Tensor({0.53f, 0.34f, 0.98f}, {1, 1, 1, 3});
  *request.mutable_k() =
      F32Tensor({0.34f, 0.22f, 0.54f, 0.53f, 0.34f, 0.98f, 0.29f, 0.54f, 0.93f}, {1, 1, 3, 3});
  *request.mutable_v() = request.k();
  request.mutable_options()->set_scale(1.0f);
  const auto reply = client_.Attend(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  const absl::Span<const float> output = F32Values(reply->output()).value();
  EXPECT_NEAR(output[0], 0.39896, 5e-6);
  EXPECT_NEAR(output[1], 0.38542, 5e-6);
  EXPECT_NEAR(output[2], 0.86095, 5e-6);
}

}  // namespace
}  // namespace attnserve::client
