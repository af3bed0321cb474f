// What is repeated, and that nothing is applied twice.
#include "client/src/retry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "tests/client/faulty_server.h"

namespace attnserve::client {
namespace {

using attnserve::testing::Fault;
using attnserve::testing::FaultyServer;
using internal::Repeat;
using internal::RetryClock;
using internal::RunWithRetries;
using internal::TimePoint;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

milliseconds Since(steady_clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
}

class RetryTest : public ::testing::Test {
 protected:
  // A session, and a count of calls that starts after its creation.
  Session NewSession(const Client& client) {
    Session session = client.CreateSession({}).value();
    before_ = server_.calls();
    return session;
  }
  int Attempts() const { return server_.calls() - before_; }

  FaultyServer server_;
  int before_ = 0;
};

TEST_F(RetryTest, StepWhoseReplyWasLostIsAppliedOnce) {
  const Client client = server_.Connect();
  Session session = NewSession(client);
  server_.Script({Fault::kReplyLost, Fault::kReplyLost});
  const auto reply = session.Decode({});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->replayed());
  EXPECT_EQ(Attempts(), 3);
  EXPECT_EQ(server_.applied(), 1);
  EXPECT_EQ(session.length(0), 1);
  const std::vector<v1::DecodeRequest> steps = server_.steps();
  ASSERT_EQ(steps.size(), 3u);
  for (const v1::DecodeRequest& step : steps) {
    EXPECT_EQ(step.request_id(), steps[0].request_id());
    EXPECT_EQ(step.expected_position(), 0);
    EXPECT_TRUE(step.has_expected_position());
  }
}

TEST_F(RetryTest, StepsOfASessionHaveDifferentIdsAndGrowingPositions) {
  const Client client = server_.Connect();
  Session session = NewSession(client);
  std::set<std::string> ids;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(session.Decode({}).ok());
  for (const v1::DecodeRequest& step : server_.steps()) {
    EXPECT_EQ(step.expected_position(), static_cast<int64_t>(ids.size()));
    EXPECT_EQ(step.session_id(), session.id());
    EXPECT_LE(step.request_id().size(), 128u);
    ids.insert(step.request_id());
  }
  EXPECT_EQ(ids.size(), 3u);
}

TEST_F(RetryTest, AttemptThatTakesTooLongIsRepeated) {
  ClientOptions options = FaultyServer::FastOptions();
  options.retry.attempt_timeout = milliseconds(100);
  const Client client = server_.Connect(options);
  Session session = NewSession(client);
  server_.Script({Fault::kReplyLate});
  const auto reply = session.Decode({});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->replayed());
  EXPECT_EQ(Attempts(), 2);
  EXPECT_EQ(server_.applied(), 1);
}

TEST_F(RetryTest, APromptMayTakeItsTime) {
  ClientOptions options = FaultyServer::FastOptions();
  options.retry.attempt_timeout = milliseconds(100);
  options.timeout = milliseconds(400);
  const Client client = server_.Connect(options);
  Session session = NewSession(client);
  for (const int64_t tokens : {64, 65}) {
    SCOPED_TRACE(tokens);
    v1::DecodeRequest step;
    *step.mutable_x() = F32Tensor(std::vector<float>(static_cast<size_t>(tokens)), {1, tokens, 1});
    server_.Script({Fault::kReplyLate});
    EXPECT_EQ(session.Decode(step).ok(), tokens == 64);
    EXPECT_EQ(Attempts(), tokens == 64 ? 2 : 3) << "65 tokens have the whole deadline";
  }
}

TEST_F(RetryTest, FullQueueIsTriedAgainAfterTheDelayAsked) {
  const Client client = server_.Connect();
  Session session = NewSession(client);
  server_.Script({Fault::kQueueFull});
  const auto start = steady_clock::now();
  ASSERT_TRUE(session.Decode({}).ok());
  EXPECT_GE(Since(start), attnserve::testing::kQueueFullDelay);
  EXPECT_EQ(Attempts(), 2);
}

TEST_F(RetryTest, ErrorsThatWaitingDoesNotCureAreNotRepeated) {
  const Client client = server_.Connect();
  Session session = NewSession(client);
  server_.Script({Fault::kTooLarge});
  EXPECT_EQ(ErrorReason(session.Decode({}).status()), "RESPONSE_TOO_LARGE");
  EXPECT_EQ(Attempts(), 1);
  server_.Script({Fault::kPositionConflict});
  const absl::Status status = session.Decode({}).status();
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_EQ(GetErrorInfo(status)->metadata.at("length"), "17");
  EXPECT_EQ(Attempts(), 2);
  EXPECT_EQ(session.length(0), 0) << "an error means not applied";
}

// Attempts on a clock of their own: each takes 10 ms and is refused.
class RetryClockTest : public ::testing::Test {
 protected:
  absl::Status Run(milliseconds timeout, Repeat repeat) {
    RetryClock clock;
    clock.now = [this] { return now_; };
    clock.sleep = [this](milliseconds wait) {
      waits_.push_back(wait);
      now_ += wait;
    };
    const auto refused = [this](TimePoint attempt_deadline) {
      allowed_.push_back(std::chrono::duration_cast<milliseconds>(attempt_deadline - now_));
      now_ += milliseconds(10);
      return absl::UnavailableError("refused");
    };
    return RunWithRetries(policy_, now_ + timeout, repeat, refused, clock);
  }

  RetryPolicy policy_;
  TimePoint now_{};
  std::vector<milliseconds> allowed_;  // to each attempt
  std::vector<milliseconds> waits_;
};

TEST_F(RetryClockTest, RepetitionEndsAtTheDeadline) {
  policy_.max_attempts = 1000000;
  policy_.initial_backoff = milliseconds(20);
  policy_.max_backoff = milliseconds(20);
  const TimePoint deadline = now_ + milliseconds(300);
  const absl::Status status = Run(milliseconds(300), Repeat::kSafe);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("(after " + std::to_string(allowed_.size()) + " attempts)"));
  EXPECT_EQ(waits_.size() + 1, allowed_.size());
  EXPECT_LT(now_, deadline + milliseconds(10)) << "one attempt may end after it";
  EXPECT_GE(now_, deadline - milliseconds(24)) << "a wait of at most 24 ms would still have fitted";
  EXPECT_THAT(allowed_, ::testing::Each(::testing::Gt(milliseconds(0))));
}

TEST_F(RetryClockTest, WaitsGrowUpToTheLongest) {
  policy_.max_attempts = 6;
  policy_.initial_backoff = milliseconds(100);
  policy_.multiplier = 2.0;
  policy_.max_backoff = milliseconds(400);
  EXPECT_TRUE(absl::IsUnavailable(Run(milliseconds(100000), Repeat::kSafe)));
  const std::vector<int> nominal = {100, 200, 400, 400, 400};
  ASSERT_EQ(waits_.size(), nominal.size());
  for (size_t i = 0; i < waits_.size(); ++i) {
    EXPECT_GE(waits_[i], milliseconds(nominal[i] * 8 / 10)) << i;
    EXPECT_LE(waits_[i], milliseconds(nominal[i] * 12 / 10)) << i;
  }
}

TEST_F(RetryClockTest, CheapAttemptsHaveLessThanTheDeadline) {
  policy_.max_attempts = 3;
  policy_.attempt_timeout = milliseconds(1000);
  Run(milliseconds(5000), Repeat::kSafeAndCheap).IgnoreError();
  EXPECT_THAT(allowed_,
              ::testing::ElementsAre(milliseconds(1000), milliseconds(1000), milliseconds(1000)));
  allowed_.clear();
  Run(milliseconds(700), Repeat::kSafeAndCheap).IgnoreError();
  EXPECT_EQ(allowed_.at(0), milliseconds(700));
}

TEST_F(RetryTest, RepetitionEndsAtTheDeadline) {
  ClientOptions options = FaultyServer::FastOptions();
  options.timeout = milliseconds(300);
  options.retry.max_attempts = 1000000;
  const Client client = server_.Connect(options);
  Session session = NewSession(client);
  server_.Script({}, Fault::kRefused);
  const absl::Status status = session.Decode({}).status();
  // The last attempt was refused, or had no answer yet.
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("attempts"));
  EXPECT_GT(Attempts(), 2);
  server_.Script({});
}

TEST_F(RetryTest, CallOptionsSetTheDeadline) {
  const Client client = server_.Connect();
  Session session = NewSession(client);
  server_.Script({Fault::kReplyLate});
  CallOptions call;
  call.timeout = milliseconds(50);
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Decode({}, call).status()));
  EXPECT_LE(Attempts(), 1);
}

TEST_F(RetryTest, AttemptsAreLimited) {
  ClientOptions options = FaultyServer::FastOptions();
  options.retry.max_attempts = 3;
  const Client client = server_.Connect(options);
  Session session = NewSession(client);
  server_.Script({}, Fault::kRefused);
  EXPECT_TRUE(absl::IsUnavailable(session.Decode({}).status()));
  EXPECT_EQ(Attempts(), 3);
  server_.Script({});
}

TEST_F(RetryTest, StepWithoutIdIsRepeatedOnlyIfTheServerRefusedIt) {
  const Client client = server_.Connect();
  server_.Script({Fault::kReplyLost});
  EXPECT_TRUE(absl::IsUnavailable(client.Decode({}).status()));
  EXPECT_EQ(server_.calls(), 1);
  server_.Script({Fault::kDraining});
  EXPECT_TRUE(client.Decode({}).ok());
  EXPECT_EQ(server_.calls(), 3);
}

TEST_F(RetryTest, BatchIsRepeatedIfEveryStepHasAnId) {
  const Client client = server_.Connect();
  Session session = NewSession(client);
  v1::DecodeBatchRequest batch;
  session.Prepare(batch.add_steps());
  session.Prepare(batch.add_steps());
  server_.Script({Fault::kReplyLost});
  const auto outcomes = client.DecodeBatch(batch);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  ASSERT_EQ(outcomes->size(), 2u);
  EXPECT_EQ((*outcomes)[1]->position(), 1);
  EXPECT_EQ(server_.applied(), 2);
  batch.mutable_steps(1)->clear_request_id();
  server_.Script({Fault::kReplyLost});
  EXPECT_TRUE(absl::IsUnavailable(client.DecodeBatch(batch).status()));
}

TEST_F(RetryTest, StatelessCallIsRepeatedButNotCutShort) {
  ClientOptions options = FaultyServer::FastOptions();
  options.timeout = milliseconds(400);
  options.retry.attempt_timeout = milliseconds(50);
  const Client client = server_.Connect(options);
  server_.Script({Fault::kReplyLost});
  EXPECT_TRUE(client.Forward({}).ok());
  EXPECT_EQ(server_.calls(), 2);
  server_.Script({Fault::kReplyLate});
  EXPECT_TRUE(absl::IsDeadlineExceeded(client.Forward({}).status()));
  EXPECT_EQ(server_.calls(), 3) << "one attempt had the whole deadline";
}

TEST_F(RetryTest, SessionWhoseReplyWasLostIsNotLeftBehind) {
  const Client client = server_.Connect();
  server_.Script({Fault::kReplyLost});
  {
    const auto session = client.CreateSession({});
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_THAT(server_.sessions(), ::testing::ElementsAre(session->id()));
    EXPECT_EQ(session->id().size(), 32u);
  }
  EXPECT_TRUE(server_.sessions().empty());
}

TEST_F(RetryTest, SessionWithAChosenIdIsNotCreatedTwice) {
  const Client client = server_.Connect();
  v1::CreateSessionRequest request;
  request.set_session_id("mine");
  server_.Script({Fault::kReplyLost});
  EXPECT_TRUE(absl::IsUnavailable(client.CreateSession(request).status()));
  EXPECT_EQ(server_.calls(), 1);
  EXPECT_EQ(ErrorReason(client.CreateSession(request).status()), "SESSION_EXISTS");
  EXPECT_EQ(server_.sessions().count("mine"), 1u) << "another owner's session is not touched";
}

TEST(Connect, NobodyThereIsUnavailableAtOnce) {
  std::string address;
  {
    const FaultyServer gone;
    address = gone.address();
  }
  const auto start = steady_clock::now();
  const auto client = Client::Connect(address);
  EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
  EXPECT_THAT(std::string(client.status().message()), HasSubstr(address));
  EXPECT_LT(Since(start), milliseconds(3000));
}

TEST(Connect, WaitsForAServerThatIsNotUpIfAsked) {
  std::string address;
  {
    const FaultyServer gone;
    address = gone.address();
  }
  ClientOptions options;
  options.wait_for_server = milliseconds(300);
  const auto start = steady_clock::now();
  EXPECT_TRUE(absl::IsUnavailable(Client::Connect(address, options).status()));
  EXPECT_GE(Since(start), milliseconds(300));
}

TEST(Connect, SilentServerEndsInTheDeadline) {
  FaultyServer server;
  ClientOptions options = FaultyServer::FastOptions();
  options.timeout = milliseconds(150);
  const Client client = server.Connect(options);
  server.Script({}, Fault::kReplyLate);
  EXPECT_TRUE(absl::IsDeadlineExceeded(client.Decode({}).status()));
}

}  // namespace
}  // namespace attnserve::client
