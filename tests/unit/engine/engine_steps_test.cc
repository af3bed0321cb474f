// What a step does: its numbers, positions, retries, truncation, budget, and what it refuses.
#include "gmock/gmock.h"
#include "tests/unit/engine/engine_fixture.h"

namespace attnserve {
namespace {

TEST_F(EngineTest, TokensChunksAndForwardHaveTheSameBits) {
  const auto model = SmallModel(1);
  constexpr int64_t kTokens = 150;
  const Floats x = Noise(kTokens * kWidth, 7);
  const Answer whole = Forward(engine(), model, 0, 1, kTokens, x);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_THAT(whole.shape, ::testing::ElementsAre(1, kTokens, kWidth));
  for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{64}, int64_t{150}}) {
    const std::string session = Create(model);
    Floats pieces;
    for (int64_t t = 0; t < kTokens; t += chunk) {
      const Answer piece = Decode(engine(), Tokens(session, 0, x, t, std::min(kTokens, t + chunk)));
      ASSERT_TRUE(piece.status.ok()) << piece.status;
      EXPECT_EQ(piece.position, t);
      pieces.insert(pieces.end(), piece.output.begin(), piece.output.end());
    }
    EXPECT_TRUE(SameBits(whole.output, pieces)) << "chunks of " << chunk;
    EXPECT_EQ(Length(session), kTokens);
    ASSERT_TRUE(Control(engine(), SessionCall::Kind::kDelete, session).ok());
  }
  ExpectNothingHeld();
}

TEST_F(EngineTest, AllLayersInOneStepEqualLayerByLayer) {
  const auto model = SmallModel(3);
  const Floats x = Noise(40 * kWidth, 8);
  const std::string together = Create(model), apart = Create(model);
  const Answer all = Decode(engine(), Tokens(together, -1, x, 0, 40));
  ASSERT_TRUE(all.status.ok()) << all.status;
  Floats hidden = x;
  for (int layer = 0; layer < 3; ++layer) {
    hidden = Decode(engine(), Tokens(apart, layer, hidden, 0, 40)).output;
  }
  EXPECT_TRUE(SameBits(all.output, hidden));
  EXPECT_TRUE(SameBits(all.output, Forward(engine(), model, -1, 1, 40, x).output));
  for (size_t layer = 0; layer < 3; ++layer) EXPECT_EQ(Length(together, layer), 40);
}

TEST_F(EngineTest, AllLayersNeedOneLength) {
  const std::string session = Create(SmallModel(2));
  ASSERT_TRUE(Decode(engine(), Token(session, 1)).status.ok());
  DecodeStep all = Token(session, 2);
  all.layer = -1;
  EXPECT_EQ(Reason(Decode(engine(), all).status), "POSITION_CONFLICT");
  ASSERT_TRUE(Control(engine(), SessionCall::Kind::kTruncate, session, 0).ok());
  EXPECT_TRUE(Decode(engine(), all).status.ok());
}

TEST_F(EngineTest, BatchRowsOfForwardAreIndependent) {
  const auto model = SmallModel(1);
  const Floats x = Noise(3 * 5 * kWidth, 9);
  const Answer batch = Forward(engine(), model, 0, 3, 5, x);
  for (int64_t b = 0; b < 3; ++b) {
    const Floats row(x.begin() + b * 5 * kWidth, x.begin() + (b + 1) * 5 * kWidth);
    const Floats expected(batch.output.begin() + b * 5 * kWidth,
                          batch.output.begin() + (b + 1) * 5 * kWidth);
    EXPECT_TRUE(SameBits(expected, Forward(engine(), model, 0, 1, 5, row).output));
  }
}

TEST_F(EngineTest, ExpectedPositionIsChecked) {
  const std::string session = Create(SmallModel(1));
  DecodeStep step = Token(session, 1);
  step.expected_position = 0;
  EXPECT_TRUE(Decode(engine(), step).status.ok());
  const absl::Status again = Decode(engine(), step).status;
  EXPECT_EQ(Reason(again), "POSITION_CONFLICT");
  EXPECT_EQ(GetErrorDetail(again)->metadata.at("length"), "1");
  step.expected_position = 5;
  EXPECT_EQ(Reason(Decode(engine(), step).status), "POSITION_BEYOND_LENGTH");
  EXPECT_EQ(Length(session), 1);
}

TEST_F(EngineTest, RequestIdAppliesOnce) {
  const std::string session = Create(SmallModel(1));
  DecodeStep step = Token(session, 1);
  step.request_id = "a";
  step.stages = {Stage::kWeights, Stage::kLse};
  const Answer first = Decode(engine(), step);
  const Answer second = Decode(engine(), step);
  ASSERT_TRUE(second.status.ok()) << second.status;
  EXPECT_FALSE(first.replayed);
  EXPECT_TRUE(second.replayed);
  EXPECT_TRUE(SameBits(first.output, second.output));
  EXPECT_EQ(first.stages, second.stages);
  EXPECT_EQ(second.position, 0);
  EXPECT_EQ(second.length, 1);
  EXPECT_EQ(Length(session), 1);

  DecodeStep other = Token(session, 2);
  other.request_id = "a";
  EXPECT_EQ(Reason(Decode(engine(), other).status), "BAD_OPTION");
}

TEST_F(EngineTest, RequestIdOlderThanTheKeptRepliesIsAlreadyApplied) {
  const std::string session = Create(SmallModel(1));
  DecodeStep step = Token(session, 1);
  for (int i = 0; i < 40; ++i) {
    step.request_id = "id" + std::to_string(i);
    ASSERT_TRUE(Decode(engine(), step).status.ok());
  }
  step.request_id = "id39";
  EXPECT_TRUE(Decode(engine(), step).replayed);
  step.request_id = "id8";
  EXPECT_TRUE(Decode(engine(), step).replayed);
  step.request_id = "id7";
  EXPECT_EQ(Reason(Decode(engine(), step).status), "POSITION_CONFLICT");
  EXPECT_EQ(Length(session), 40);
}

// A reply above what is kept (1 MiB): its step is still applied once.
TEST_F(EngineTest, RequestIdOfALargeReplyIsAlreadyApplied) {
  const std::string session = Create(SmallModel(1));
  constexpr int64_t kTokens = 12000;
  DecodeStep step = Tokens(session, 0, Noise(kTokens * kWidth, 1), 0, kTokens);
  step.request_id = "large";
  ASSERT_TRUE(Decode(engine(), step).status.ok());
  const Answer again = Decode(engine(), step);
  EXPECT_EQ(Reason(again.status), "POSITION_CONFLICT") << again.status;
  EXPECT_EQ(Length(session), kTokens);
}

// The reply is kept if there is memory for it; a step never fails for its sake.
TEST_F(EngineTest, RequestIdNeedsNoFreeBudget) {
  options_.kv_budget_bytes = 256 << 10;
  CreateSessionOptions options;
  options.model = SmallModel(1);
  options.max_tokens = 64;
  options.reserve = true;
  const auto session = engine().CreateSession(options);
  ASSERT_TRUE(session.ok()) << session.status();
  while (engine().CreateSession(options).ok()) {
  }
  for (int i = 0; i < 40; ++i) {
    DecodeStep step = Token(session->info.id, static_cast<uint64_t>(i));
    step.request_id = std::to_string(i);
    const Answer answer = Decode(engine(), step);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    step.expected_position = -1;
    const Answer again = Decode(engine(), step);
    EXPECT_TRUE(again.replayed || Reason(again.status) == "POSITION_CONFLICT") << again.status;
  }
  EXPECT_EQ(Length(session->info.id), 40);
}

TEST_F(EngineTest, TruncationForgetsTheRepliesItCuts) {
  const std::string session = Create(SmallModel(1));
  DecodeStep step = Token(session, 1);
  for (const char* id : {"a", "b", "c"}) {
    step.request_id = id;
    ASSERT_TRUE(Decode(engine(), step).status.ok());
  }
  ASSERT_TRUE(Control(engine(), SessionCall::Kind::kTruncate, session, 2).ok());
  step.request_id = "b";
  EXPECT_TRUE(Decode(engine(), step).replayed);
  step.request_id = "c";
  const Answer again = Decode(engine(), step);
  EXPECT_FALSE(again.replayed);
  EXPECT_EQ(again.position, 2);
}

TEST_F(EngineTest, TruncatedSessionDecodesAsIfNeverLonger) {
  const auto model = SmallModel(1);
  const Floats x = Noise(100 * kWidth, 3), y = Noise(100 * kWidth, 4);
  const std::string a = Create(model), b = Create(model);
  Decode(engine(), Tokens(a, 0, x, 0, 100));
  ASSERT_TRUE(Control(engine(), SessionCall::Kind::kTruncate, a, 30).ok());
  Decode(engine(), Tokens(b, 0, x, 0, 30));
  EXPECT_TRUE(SameBits(Decode(engine(), Tokens(a, 0, y, 0, 100)).output,
                       Decode(engine(), Tokens(b, 0, y, 0, 100)).output));
}

TEST_F(EngineTest, TruncateBeyondEveryLayerIsOutOfRange) {
  const std::string session = Create(SmallModel(1));
  Decode(engine(), Token(session, 1));
  EXPECT_EQ(Reason(Control(engine(), SessionCall::Kind::kTruncate, session, 2)),
            "POSITION_BEYOND_LENGTH");
  EXPECT_EQ(Reason(Control(engine(), SessionCall::Kind::kTruncate, session, -1)), "BAD_OPTION");
  EXPECT_EQ(Length(session), 1);
}

TEST_F(EngineTest, ResetDropsTokensAndTheSessionLivesOn) {
  const auto model = SmallModel(1);
  const std::string session = Create(model);
  const Answer first = Decode(engine(), Token(session, 1));
  SessionCall result;
  ASSERT_TRUE(Control(engine(), SessionCall::Kind::kReset, session, 0, &result).ok());
  EXPECT_EQ(result.info.layers[0].length, 0);
  EXPECT_EQ(engine().stats().kv_block_bytes, 0);
  EXPECT_TRUE(SameBits(first.output, Decode(engine(), Token(session, 1)).output));
}

TEST_F(EngineTest, BudgetFailsTheStepAndKeepsTheSession) {
  const auto model = SmallModel(2);
  const int64_t block = model->layer(0).kv_layout().block_bytes();
  options_.kv_budget_bytes = 7 * block;
  const Floats x = Noise(200 * kWidth, 3);
  const std::string session = Create(model), other = Create(model);
  ASSERT_TRUE(Decode(engine(), Tokens(other, -1, x, 0, 1)).status.ok());
  ASSERT_TRUE(Decode(engine(), Tokens(session, -1, x, 0, 64)).status.ok());
  // Two layers need two blocks each; three are free.
  const absl::Status failed = Decode(engine(), Tokens(session, -1, x, 0, 128)).status;
  EXPECT_EQ(Reason(failed), "KV_BUDGET");
  const ErrorDetail detail = GetErrorDetail(failed).value();
  EXPECT_EQ(detail.metadata.at("needed_bytes"), std::to_string(4 * block));
  EXPECT_EQ(detail.metadata.at("free_bytes"), std::to_string(3 * block));
  EXPECT_GT(detail.retry_after_ms, 0);
  EXPECT_EQ(Length(session), 64);
  EXPECT_EQ(engine().stats().kv_charged_bytes, 4 * block);
  EXPECT_TRUE(Decode(engine(), Tokens(session, -1, x, 64, 65)).status.ok());
}

// What other sessions give back would not be enough either.
TEST_F(EngineTest, BudgetWithoutRoomForTheSessionAsksForNoRetry) {
  const auto model = SmallModel(2);
  const int64_t block = model->layer(0).kv_layout().block_bytes();
  options_.kv_budget_bytes = 5 * block;
  const Floats x = Noise(129 * kWidth, 3);
  const std::string session = Create(model);
  ASSERT_TRUE(Decode(engine(), Tokens(session, -1, x, 0, 64)).status.ok());
  const absl::Status failed = Decode(engine(), Tokens(session, -1, x, 64, 129)).status;
  EXPECT_EQ(Reason(failed), "KV_BUDGET");
  EXPECT_EQ(GetErrorDetail(failed)->retry_after_ms, 0);
  EXPECT_EQ(engine().stats().kv_charged_bytes, 2 * block);
  CreateSessionOptions options;
  options.model = model;
  options.reserve = true;
  options.max_tokens = 129;
  const absl::Status refused = engine().CreateSession(options).status();
  EXPECT_EQ(Reason(refused), "KV_BUDGET");
  EXPECT_EQ(GetErrorDetail(refused)->retry_after_ms, 0);
  options.max_tokens = 128;
  EXPECT_GT(GetErrorDetail(engine().CreateSession(options).status())->retry_after_ms, 0);
  ASSERT_TRUE(Control(engine(), SessionCall::Kind::kDelete, session).ok());
  EXPECT_TRUE(engine().CreateSession(options).ok());
}

TEST_F(EngineTest, ReserveTakesTheMemoryAtOnce) {
  const auto model = SmallModel(1);
  const int64_t block = model->layer(0).kv_layout().block_bytes();
  options_.kv_budget_bytes = 4 * block;
  CreateSessionOptions options;
  options.model = model;
  options.reserve = true;
  options.max_tokens = 65;
  auto created = engine().CreateSession(options);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->reserved_bytes, 2 * block);
  EXPECT_EQ(created->bytes_per_block, block);
  options.max_tokens = 64 * 3;
  EXPECT_EQ(Reason(engine().CreateSession(options).status()), "KV_BUDGET");
  options.max_tokens = 0;
  EXPECT_EQ(Reason(engine().CreateSession(options).status()), "BAD_OPTION");
  ASSERT_TRUE(Control(engine(), SessionCall::Kind::kReset, created->info.id).ok());
  EXPECT_EQ(engine().stats().kv_block_bytes, 2 * block);
  ASSERT_TRUE(Control(engine(), SessionCall::Kind::kDelete, created->info.id).ok());
  ExpectNothingHeld();
}

TEST_F(EngineTest, MaxTokensLimitsSessionAndForward) {
  const auto model = SmallModel(1, 10);
  const std::string session = Create(model);
  const Floats x = Noise(11 * kWidth, 3);
  EXPECT_EQ(Reason(Decode(engine(), Tokens(session, 0, x, 0, 11)).status), "MAX_TOKENS");
  EXPECT_TRUE(Decode(engine(), Tokens(session, 0, x, 0, 10)).status.ok());
  EXPECT_EQ(Reason(Decode(engine(), Tokens(session, 0, x, 0, 1)).status), "MAX_TOKENS");
  EXPECT_EQ(Reason(Forward(engine(), model, 0, 1, 11, x).status), "MAX_TOKENS");
}

TEST_F(EngineTest, CrossAttentionTakesItsContextOnce) {
  const auto model = CrossModel();
  const std::string session = Create(model);
  const Floats context = Noise(9 * 20, 5);
  EXPECT_EQ(Reason(Decode(engine(), Token(session, 1)).status), "LAYER_NEEDS_CONTEXT");
  DecodeStep first = Token(session, 1);
  first.context = context;
  first.context_rows = 9;
  first.context_width = 20;
  const Answer with = Decode(engine(), first);
  ASSERT_TRUE(with.status.ok()) << with.status;
  EXPECT_EQ(Reason(Decode(engine(), first).status), "BAD_OPTION");
  const Answer later = Decode(engine(), Token(session, 2));
  ASSERT_TRUE(later.status.ok()) << later.status;
  EXPECT_EQ(later.position, 1);
  EXPECT_TRUE(SameBits(later.output,
                       Forward(engine(), model, 0, 1, 1, Noise(kWidth, 2), {}, 9, context).output));
  EXPECT_EQ(engine().GetSession(session)->layers[0].context_length, 9);

  ASSERT_TRUE(Control(engine(), SessionCall::Kind::kTruncate, session, 1).ok());
  EXPECT_TRUE(Decode(engine(), Token(session, 2)).status.ok());
  ASSERT_TRUE(Control(engine(), SessionCall::Kind::kReset, session).ok());
  EXPECT_EQ(Reason(Decode(engine(), Token(session, 1)).status), "LAYER_NEEDS_CONTEXT");
}

TEST_F(EngineTest, WrongShapesNameTheField) {
  const std::string session = Create(SmallModel(1));
  DecodeStep step = Token(session, 1);
  step.width = 12;
  step.tokens = 2;
  const absl::Status status = Decode(engine(), step).status;
  EXPECT_EQ(Reason(status), "BAD_SHAPE");
  EXPECT_EQ(GetErrorDetail(status)->field, "x");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("[1, 2, 12]"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("[1, any, 24]"));
  DecodeStep layer = Token(session, 1);
  layer.layer = 7;
  EXPECT_EQ(Reason(Decode(engine(), layer).status), "LAYER_NOT_FOUND");
  EXPECT_EQ(Length(session), 0);
}

}  // namespace
}  // namespace attnserve
