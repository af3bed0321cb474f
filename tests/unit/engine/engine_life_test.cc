// Calls beside each other and in time: deadlines, batches, queues, expiry, draining.
#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "tests/unit/engine/engine_fixture.h"

namespace attnserve {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST_F(EngineTest, ExpiredDeadlineAndCancelApplyNothing) {
  const std::string session = Create(SmallModel(1));
  DecodeStep late = Token(session, 1);
  late.deadline = Clock::now() - std::chrono::seconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Decode(engine(), late).status));
  EXPECT_EQ(Length(session), 0);
}

TEST_F(EngineTest, CancelDuringALongPrefillRollsBack) {
  const auto model = SmallModel(1);
  const std::string session = Create(model);
  constexpr int64_t kTokens = 20000;
  PendingStep step(engine(), Tokens(session, 0, Noise(kTokens * kWidth, 2), 0, kTokens));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  step.call().cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(step.Wait().status));
  EXPECT_EQ(Length(session), 0);
  EXPECT_EQ(engine().stats().kv_charged_bytes, 0);
}

TEST_F(EngineTest, LightStepOfAnIdleEngineRunsInSubmit) {
  const auto here = std::this_thread::get_id();
  const std::string session = Create(SmallModel(2));
  DecodeStep step = Token(session, 1);
  EXPECT_NE(Decode(engine(), step).thread, here) << "nobody allowed it";
  step.may_run_in_submit = true;
  while (Decode(engine(), step).thread != here) {  // until the scheduler has nothing to do
    std::this_thread::yield();
  }
  EXPECT_EQ(Decode(engine(), step).thread, here);
  constexpr int64_t kTokens = 300;
  DecodeStep prompt = Tokens(session, 0, Noise(kTokens * kWidth, 2), 0, kTokens);
  prompt.may_run_in_submit = true;
  EXPECT_NE(Decode(engine(), prompt).thread, here) << "it is not light";
}

TEST_F(EngineTest, StepsInSubmitMixWithOthers) {
  options_.worker_count = 2;
  constexpr int64_t kTokens = 200;
  constexpr int kSessions = 4;
  const auto model = SmallModel(1);
  const Floats x = Noise(kTokens * kWidth, 3);
  const std::string alone = Create(model);
  const Floats expected = Decode(engine(), Tokens(alone, 0, x, 0, kTokens)).output;
  std::vector<std::string> sessions;
  for (int i = 0; i < kSessions; ++i) sessions.push_back(Create(model));
  std::vector<Floats> outputs(kSessions);
  std::vector<std::thread> callers;
  for (size_t i = 0; i < kSessions; ++i) {
    callers.emplace_back([&, i] {
      for (int64_t begin = 0; begin < kTokens;) {
        const int64_t end = std::min<int64_t>(kTokens, begin + (begin % 50 == 49 ? 40 : 1));
        DecodeStep step = Tokens(sessions[i], 0, x, begin, end);
        step.may_run_in_submit = begin % 3 != 0;
        const Answer answer = Decode(engine(), step);
        outputs[i].insert(outputs[i].end(), answer.output.begin(), answer.output.end());
        begin = end;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const Floats& output : outputs) EXPECT_TRUE(SameBits(output, expected));
}

TEST_F(EngineTest, DecodeStepsPassALongPrefill) {
  const auto model = SmallModel(1);
  const std::string slow = Create(model), quick = Create(model);
  constexpr int64_t kTokens = 20000;
  PendingStep prefill(engine(), Tokens(slow, 0, Noise(kTokens * kWidth, 2), 0, kTokens));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Decode(engine(), Token(quick, 1)).status.ok());
  EXPECT_EQ(Length(slow), 0);  // not committed yet
  prefill.call().cancelled = true;
  prefill.Wait();
}

TEST_F(EngineTest, DecodeStepsPassWithinASlice) {
  options_.limits.slice_rows = int64_t{1} << 20;  // the whole prompt is one slice
  for (const int workers : {1, 3}) {
    options_.worker_count = workers;
    engine_ = nullptr;
    const auto model = SmallModel(2);
    const std::string slow = Create(model), quick = Create(model);
    constexpr int64_t kTokens = 8000;
    PendingStep prefill(engine(), Tokens(slow, 0, Noise(kTokens * kWidth, 2), 0, kTokens));
    while (engine().stats().queued_calls > 0 && engine().stats().kv_block_bytes == 0) {
      std::this_thread::yield();  // until it has begun
    }
    for (int i = 0; i < 5; ++i) {
      DecodeStep through_all = Token(quick, 1);
      through_all.layer = -1;
      ASSERT_TRUE(Decode(engine(), through_all).status.ok());
    }
    EXPECT_EQ(Length(slow), 0);  // not committed yet
    // What they did beside it changed nothing of it.
    const Answer beside = prefill.Wait();
    ASSERT_TRUE(beside.status.ok()) << beside.status;
    const std::string alone = Create(model);
    const Answer expected =
        Decode(engine(), Tokens(alone, 0, Noise(kTokens * kWidth, 2), 0, kTokens));
    EXPECT_TRUE(SameBits(beside.output, expected.output));
  }
}

TEST_F(EngineTest, DeletionFailsWhatWaitsBehindIt) {
  const auto model = SmallModel(1);
  const std::string session = Create(model);
  PendingStep running(engine(), Tokens(session, 0, Noise(2000 * kWidth, 2), 0, 2000));
  auto deletion = std::async(
      std::launch::async, [&] { return Control(engine(), SessionCall::Kind::kDelete, session); });
  while (engine().stats().queued_calls < 2) std::this_thread::yield();
  PendingStep behind(engine(), Token(session, 1));
  auto second = std::async(std::launch::async,
                           [&] { return Control(engine(), SessionCall::Kind::kDelete, session); });
  EXPECT_TRUE(deletion.get().ok());
  EXPECT_TRUE(second.get().ok());
  EXPECT_TRUE(running.Wait().status.ok());
  EXPECT_EQ(Reason(behind.Wait().status), "SESSION_NOT_FOUND");
  SessionCall again;
  EXPECT_TRUE(Control(engine(), SessionCall::Kind::kDelete, session, 0, &again).ok());
  EXPECT_FALSE(again.existed);
  ExpectNothingHeld();
}

TEST_F(EngineTest, ChainFailsFollowersUntilExpectedPosition) {
  const std::string session = Create(SmallModel(1));
  StepChain chain;
  chain.restarts_at_expected_position = true;
  DecodeStep bad = Token(session, 1);
  bad.expected_position = 3;
  bad.chain = &chain;
  DecodeStep follower = Token(session, 1);
  follower.chain = &chain;
  EXPECT_EQ(Reason(Decode(engine(), bad).status), "POSITION_BEYOND_LENGTH");
  EXPECT_EQ(Reason(Decode(engine(), follower).status), "PREDECESSOR_FAILED");
  follower.expected_position = 0;
  EXPECT_TRUE(Decode(engine(), follower).status.ok());
  follower.expected_position = -1;
  EXPECT_TRUE(Decode(engine(), follower).status.ok());
}

TEST_F(EngineTest, BatchChainNeverRestarts) {
  const std::string session = Create(SmallModel(1));
  StepChain chain;
  DecodeStep bad = Token(session, 1);
  bad.error = BadShape("x", "is wrong");
  bad.chain = &chain;
  DecodeStep follower = Token(session, 1);
  follower.chain = &chain;
  follower.expected_position = 0;
  EXPECT_EQ(Reason(Decode(engine(), bad).status), "BAD_SHAPE");
  EXPECT_EQ(Reason(Decode(engine(), follower).status), "PREDECESSOR_FAILED");
  EXPECT_EQ(Length(session), 0);
}

TEST_F(EngineTest, IdleSessionsExpireOnABusyServer) {
  std::atomic<int64_t> seconds{0};
  options_.clock = [&seconds] { return Clock::time_point(std::chrono::seconds(seconds.load())); };
  options_.default_session_ttl = std::chrono::seconds(10);
  const auto model = SmallModel(1);
  const std::string idle = Create(model), busy = Create(model);
  ASSERT_TRUE(Decode(engine(), Token(idle, 1)).status.ok());
  const auto start = Clock::now();
  while (engine().stats().session_count == 2 && Clock::now() < start + std::chrono::seconds(30)) {
    ASSERT_TRUE(Decode(engine(), Token(busy, 1)).status.ok());
    seconds = std::min<int64_t>(seconds + 1, 1000000);
  }
  EXPECT_EQ(engine().stats().session_count, 1);
  EXPECT_EQ(Reason(engine().GetSession(idle).status()), "SESSION_EXPIRED");
}

TEST_F(EngineTest, IdleSessionsExpireAndAreRemembered) {
  std::atomic<int64_t> seconds{0};
  options_.clock = [&seconds] { return Clock::time_point(std::chrono::seconds(seconds.load())); };
  options_.default_session_ttl = std::chrono::seconds(10);
  const std::string session = Create(SmallModel(1), "mine");
  seconds = 9;
  EXPECT_TRUE(Decode(engine(), Token(session, 1)).status.ok());
  seconds = 18;
  EXPECT_EQ(engine().GetSession(session)->expires_in, std::chrono::seconds(1));
  seconds = 19;  // GetSession did not refresh
  EXPECT_EQ(Reason(engine().GetSession(session).status()), "SESSION_EXPIRED");
  EXPECT_EQ(Reason(Decode(engine(), Token(session, 1)).status), "SESSION_EXPIRED");
  ExpectNothingHeld();
  const SessionPage page = engine().ListSessions(10, "", true);
  EXPECT_THAT(page.sessions, IsEmpty());
  ASSERT_THAT(page.ended, SizeIs(1));
  EXPECT_EQ(page.ended[0].reason, EndReason::kExpired);
  EXPECT_EQ(Create(SmallModel(1), "mine"), "mine");  // the id is free again
  EXPECT_EQ(engine().GetSession("mine")->generation, 2);
  seconds = 19 + 3601;
  EXPECT_EQ(Reason(engine().GetSession("other").status()), "SESSION_NOT_FOUND");
}

TEST_F(EngineTest, SessionIdsAreCheckedAndUnique) {
  const auto model = SmallModel(1);
  EXPECT_EQ(Create(model, "a-b_c.d~1"), "a-b_c.d~1");
  CreateSessionOptions options;
  options.model = model;
  options.id = "a-b_c.d~1";
  EXPECT_EQ(Reason(engine().CreateSession(options).status()), "SESSION_EXISTS");
  options.id = "no spaces";
  EXPECT_EQ(Reason(engine().CreateSession(options).status()), "BAD_OPTION");
  EXPECT_THAT(Create(model), SizeIs(32));
}

TEST_F(EngineTest, SessionLimitHolds) {
  options_.limits.max_sessions = 2;
  const auto model = SmallModel(1);
  Create(model);
  Create(model);
  CreateSessionOptions options;
  options.model = model;
  EXPECT_EQ(Reason(engine().CreateSession(options).status()), "SESSION_LIMIT");
}

TEST_F(EngineTest, ListPagesInOrderOfIds) {
  const auto model = SmallModel(1);
  for (const char* id : {"c", "a", "b"}) Create(model, id);
  const SessionPage first = engine().ListSessions(2, "", false);
  ASSERT_THAT(first.sessions, SizeIs(2));
  EXPECT_EQ(first.sessions[0].id, "a");
  EXPECT_EQ(first.next_page_token, "b");
  const SessionPage second = engine().ListSessions(2, first.next_page_token, false);
  ASSERT_THAT(second.sessions, SizeIs(1));
  EXPECT_EQ(second.sessions[0].id, "c");
  EXPECT_EQ(second.next_page_token, "");
}

TEST_F(EngineTest, FullQueueRefuses) {
  options_.limits.max_queued_calls = 1;
  const auto model = SmallModel(1);
  const std::string session = Create(model);
  PendingStep running(engine(), Tokens(session, 0, Noise(20000 * kWidth, 2), 0, 20000));
  const absl::Status refused = Decode(engine(), Token(session, 1)).status;
  EXPECT_EQ(Reason(refused), "QUEUE_FULL");
  EXPECT_GT(GetErrorDetail(refused)->retry_after_ms, 0);
  running.call().cancelled = true;
  running.Wait();
}

TEST_F(EngineTest, DrainingRefusesNewCallsAndFinishesOldOnes) {
  const auto model = SmallModel(1);
  const std::string session = Create(model);
  PendingStep running(engine(), Tokens(session, 0, Noise(1000 * kWidth, 2), 0, 1000));
  engine().Drain();
  EXPECT_EQ(Reason(Decode(engine(), Token(session, 1)).status), "DRAINING");
  EXPECT_EQ(Reason(Forward(engine(), model, 0, 1, 1, Noise(kWidth, 1)).status), "DRAINING");
  EXPECT_TRUE(running.Wait().status.ok());
  EXPECT_TRUE(engine().WaitUntilIdle(Clock::now() + std::chrono::seconds(10)));
}

TEST_F(EngineTest, StagesAboveTheCapAreRefused) {
  options_.limits.max_stage_bytes = 4 * 4 * 10 * 10;
  const auto model = SmallModel(1);
  EXPECT_TRUE(
      Forward(engine(), model, 0, 1, 10, Noise(10 * kWidth, 1), {Stage::kWeights}).status.ok());
  EXPECT_EQ(
      Reason(Forward(engine(), model, 0, 1, 11, Noise(11 * kWidth, 1), {Stage::kWeights}).status),
      "RESPONSE_TOO_LARGE");
}

// Stages and output together, to the byte.
TEST_F(EngineTest, RepliesAboveTheCapAreRefused) {
  const auto model = SmallModel(1);
  const Floats x = Noise(10 * kWidth, 1);
  constexpr int64_t kOutputBytes = 10 * kWidth * 4, kStageBytes = 4 * 4 * 10 * 10;
  options_.limits.max_reply_bytes = kOutputBytes + kStageBytes;
  EXPECT_TRUE(Forward(engine(), model, 0, 1, 10, x, {Stage::kWeights}).status.ok());
  engine_.reset();
  options_.limits.max_reply_bytes = kOutputBytes + kStageBytes - 1;
  EXPECT_EQ(Reason(Forward(engine(), model, 0, 1, 10, x, {Stage::kWeights}).status),
            "RESPONSE_TOO_LARGE");
  EXPECT_TRUE(Forward(engine(), model, 0, 1, 10, x).status.ok());
}

// Many threads, sessions, chunk sizes: every session's output is that of a lone one.
TEST_F(EngineTest, ConcurrentSessionsNeverInfluenceEachOther) {
  options_.worker_count = 2;
  const auto model = SmallModel(2);
  constexpr int64_t kTokens = 90;
  constexpr int kThreads = 6;
  std::vector<Floats> inputs, expected;
  for (int i = 0; i < kThreads; ++i) {
    inputs.push_back(Noise(kTokens * kWidth, 100 + static_cast<uint64_t>(i)));
    expected.push_back(Forward(engine(), model, -1, 1, kTokens, inputs.back()).output);
    ASSERT_THAT(expected.back(), Not(IsEmpty()));
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      for (int round = 0; round < 4; ++round) {
        const std::string session = Create(model);
        Floats pieces;
        for (int64_t t = 0; t < kTokens;) {
          const int64_t end = std::min<int64_t>(kTokens, t + 1 + random() % 30);
          const Answer piece =
              Decode(engine(), Tokens(session, -1, inputs[static_cast<size_t>(i)], t, end));
          pieces.insert(pieces.end(), piece.output.begin(), piece.output.end());
          t = end;
        }
        if (!SameBits(pieces, expected[static_cast<size_t>(i)])) ++wrong;
        if (!Control(engine(), SessionCall::Kind::kDelete, session).ok()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  ExpectNothingHeld();
}

}  // namespace
}  // namespace attnserve
