// The bits of a sequence's output depend on nothing but the sequence: not on its neighbours in a
// call, on threads, or on how its tokens are cut into passes.
#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/attention/layer_fixture.h"

namespace attnserve {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class LayerBitsTest : public LayerFixture {};

// Sequences of very different lengths in common calls, on 1 to 4 threads: each has the bits it has
// alone on one thread.
TEST_F(LayerBitsTest, BatchOfStrangersChangesNoBit) {
  for (const LayerSpec& spec : {RotaryLayer(), CoreSpec(6, 2, 24, 40)}) {
    const auto layer = MakeLayer(spec);
    const int64_t past[] = {2100, 0, 64, 0, 1023};
    const int64_t fresh[] = {1, 5, 70, 200, 3};
    std::vector<std::vector<float>> alone;
    for (int64_t i = 0; i < 5; ++i) {
      LayerSession session(*layer, &pool_, past[i] + fresh[i], i);
      session.Step(0, past[i], inline_runner_, workspace_);
      session.Step(past[i], past[i] + fresh[i], inline_runner_, workspace_);
      alone.push_back(session.output());
    }
    for (const int workers : {1, 2, 3, 4}) {
      ThreadRunner runner(workers);
      std::vector<std::unique_ptr<LayerSession>> sessions;
      std::vector<PassRows> keys, queries;
      for (int64_t i = 0; i < 5; ++i) {
        sessions.push_back(std::make_unique<LayerSession>(*layer, &pool_, past[i] + fresh[i], i));
        sessions.back()->Step(0, past[i], runner, workspace_);
        sessions.back()->Begin(past[i], past[i] + fresh[i]);
        keys.push_back(sessions.back()->KeyRows());
        queries.push_back(sessions.back()->QueryRows());
      }
      std::reverse(queries.begin(), queries.end());
      LayerSession::ExpectOk(layer->AppendKeys(keys, runner, workspace_));
      LayerSession::ExpectOk(layer->Attend(queries, runner, workspace_));
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_TRUE(SameBits(sessions[i]->output(), alone[i])) << i << ", " << workers;
      }
    }
  }
}

TEST_F(LayerBitsTest, OneLongSequenceFeedsAllWorkers) {
  LayerSpec spec = CoreSpec(4, 1, 32, 32);
  spec.attention.causal = true;
  const auto layer = MakeLayer(spec);
  constexpr int64_t kTokens = 5200;  // 6 stretches
  std::vector<float> expected;
  for (const int workers : {1, 2, 4}) {
    LayerSession session(*layer, &pool_, kTokens, 3);
    session.Step(0, kTokens - 1, inline_runner_, workspace_);
    ThreadRunner runner(workers);
    session.Step(kTokens - 1, kTokens, runner, workspace_);
    if (workers == 1) expected = session.output();
    EXPECT_EQ(runner.most_tasks(), workers == 1 ? 1 : 6);
    EXPECT_TRUE(SameBits(session.output(), expected)) << workers;
  }
}

TEST_F(LayerBitsTest, ChunksOfAnySizeEqualTheWhole) {
  LayerSpec window = RotaryLayer();
  window.attention.window.left = 100;
  window.attention.sink_token_count = 3;
  LayerSpec alibi = CoreSpec(3, 3, 8, 17);
  alibi.attention.causal = true;
  alibi.attention.position = AlibiPosition();
  alibi.attention.softcap = 3.0f;
  for (const LayerSpec& spec : {RotaryLayer(), window, alibi}) {
    const auto layer = MakeLayer(spec);
    constexpr int64_t kTokens = 1300;
    const std::vector<float> whole = Whole(*layer, kTokens, 5);
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{63, 64, 65}, {700}, {1000, 24, 1, 1, 1, 100}}) {
      LayerSession session(*layer, &pool_, kTokens, 5);
      ThreadRunner runner(2);
      for (int64_t begin = 0, i = 0; begin < kTokens; ++i) {
        const int64_t size = sizes[static_cast<size_t>(i) % sizes.size()];
        const int64_t end = std::min(kTokens, begin + size);
        session.Step(begin, end, runner, workspace_);
        begin = end;
      }
      EXPECT_TRUE(SameBits(session.output(), whole)) << sizes.front();
    }
  }
}

TEST_F(LayerBitsTest, OneDnnChangesNoBitWhereItSaysSo) {
  const auto native = MakeLayer(RotaryLayer(), GemmBackend::kNative);
  const auto onednn = MakeLayer(RotaryLayer(), GemmBackend::kOneDnn);
  if (!OneDnnMatchesPanels()) GTEST_SKIP() << "oneDNN adds in another order on this machine";
  EXPECT_TRUE(SameBits(Whole(*native, 200, 1), Whole(*onednn, 200, 1)));
}

// Masks that a task cannot unpack whole: the tile of queries shrinks, the bits stay.
TEST_F(LayerBitsTest, LongMasksAreUnpackedInTiles) {
  constexpr int64_t kPast = 8300, kQueries = 150;
  const auto layer = MakeLayer(CoreSpec(1, 1, 8, 8));
  std::vector<float> summands = Numbers(kQueries * (kPast + kQueries), 9);
  for (size_t i = 0; i < summands.size(); i += 3) summands[i] = -kInfinity;
  std::vector<uint8_t> allowed;
  for (const float summand : summands) allowed.push_back(summand > 0.0f ? 1 : 0);
  for (const bool additive : {false, true}) {
    const auto run = [&](int64_t piece, int workers) {
      LayerSession session(*layer, &pool_, kPast + kQueries, 2);
      session.Step(0, kPast, inline_runner_, workspace_);
      AttentionMaskView& mask = session.Begin(kPast, kPast + kQueries).masks.attention_mask;
      mask.dtype = additive ? DType::kF32 : DType::kBool;
      mask.data = additive ? static_cast<const void*>(summands.data()) : allowed.data();
      mask.query_stride = mask.key_count = kPast + kQueries;
      mask.key_stride = 1;
      ThreadRunner runner(workers);
      LayerSession::ExpectOk(layer->AppendKeys({session.KeyRows()}, runner, workspace_));
      for (int64_t begin = 0; begin < kQueries; begin += piece) {
        const PassRows rows = {&session.pass(), begin, std::min(kQueries, begin + piece)};
        LayerSession::ExpectOk(layer->Attend({rows}, runner, workspace_));
      }
      return session.output();
    };
    const std::vector<float> expected = run(kQueries, 1);
    EXPECT_TRUE(SameBits(run(kQueries, 3), expected));
    EXPECT_TRUE(SameBits(run(7, 1), expected));
  }
}

TEST_F(LayerBitsTest, DropoutDependsOnNoNeighbour) {
  const auto layer = MakeLayer(CoreSpec(4, 2, 16, 16));
  const auto run = [&](uint64_t seed, int64_t stream, int64_t piece, int workers) {
    LayerSession session(*layer, &pool_, 120, 2);
    LayerPass& pass = session.Begin(0, 120);
    pass.dropout = {0.3f, seed};
    pass.dropout_stream = stream;
    ThreadRunner runner(workers);
    LayerSession::ExpectOk(layer->AppendKeys({session.KeyRows()}, runner, workspace_));
    for (int64_t begin = 0; begin < 120; begin += piece) {
      const PassRows rows = {&pass, begin, std::min<int64_t>(120, begin + piece)};
      LayerSession::ExpectOk(layer->Attend({rows}, runner, workspace_));
    }
    return session.output();
  };
  const std::vector<float> expected = run(1, 0, 120, 1);
  EXPECT_TRUE(SameBits(run(1, 0, 120, 3), expected));
  EXPECT_TRUE(SameBits(run(1, 0, 7, 1), expected));
  EXPECT_FALSE(SameBits(run(2, 0, 120, 1), expected));
  EXPECT_FALSE(SameBits(run(1, 1, 120, 1), expected));
}

}  // namespace
}  // namespace attnserve
