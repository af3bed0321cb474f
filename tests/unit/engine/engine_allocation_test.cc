// What the engine allocates for a step when nothing is new to it. A program of its own, because it
// counts calls of the global operator new.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/mutex.h"
#include "tests/unit/cache/allocation_counter.h"
#include "tests/unit/engine/engine_fixture.h"

namespace attnserve {
namespace {

constexpr int64_t kTokensPerSession = 200;

// Closed by default; Wait returns once it has been passed `count` times.
class Gate {
 public:
  void Pass() {
    MutexLock lock(mutex_);
    ++passed_;
    changed_.NotifyAll();
  }
  void Wait(int64_t count) {
    MutexLock lock(mutex_);
    while (passed_ < count) changed_.Wait(mutex_);
    passed_ -= count;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int64_t passed_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A call that is made once and submitted again and again, with memory for its answer: of what
// happens between Submit and Done, everything allocated is the engine's.
class ReusedStep final : public CallSink {
 public:
  ReusedStep(const std::string& session, std::optional<int32_t> layer, int64_t tokens, Gate* done)
      : session_(session), x_(Noise(tokens * kWidth, 1)), output_(x_.size()), done_(*done) {
    call_.sink = this;
    call_.session_id = session_;
    call_.layer = layer;
    call_.x = {DType::kF32, {1, tokens, kWidth}, x_.data()};
  }

  DecodeCall* call() { return &call_; }
  // The engine's thread waits here, before the step runs.
  void HoldAt(Gate* gate) { hold_ = gate; }

  void* Output(DType, absl::Span<const int64_t>) override {
    if (hold_ != nullptr) hold_->Wait(1);
    return output_.data();
  }
  void* StageOutput(Stage, int32_t, DType, absl::Span<const int64_t>) override { return nullptr; }
  void Done(const absl::Status& status) override {
    EXPECT_TRUE(status.ok()) << status;
    done_.Pass();
  }

 private:
  const std::string session_;
  const Floats x_;
  Floats output_;
  Gate& done_;
  Gate* hold_ = nullptr;
  DecodeCall call_;
};

using Steps = std::vector<std::unique_ptr<ReusedStep>>;

class EngineAllocation : public EngineTest {
 protected:
  EngineAllocation() { options_.worker_count = 3; }

  Steps MakeSteps(const std::shared_ptr<const Model>& model, size_t count,
                  std::optional<int32_t> layer, int64_t tokens) {
    Steps steps;
    for (size_t i = 0; i < count; ++i) {
      steps.push_back(std::make_unique<ReusedStep>(Create(model), layer, tokens, &done_));
    }
    return steps;
  }
  void Run(const Steps& steps) {
    for (const auto& step : steps) engine().Submit(step->call());
    done_.Wait(static_cast<int64_t>(steps.size()));
  }

  // Shows the engine more sessions, all in one batch, and longer ones than the test will.
  void WarmUp(const std::shared_ptr<const Model>& model, std::optional<int32_t> layer) {
    const Steps prompts = MakeSteps(model, 9, layer, kTokensPerSession);
    Run(prompts);
    Steps steps;
    for (const auto& prompt : prompts) {
      const std::string session(prompt->call()->session_id);
      steps.push_back(std::make_unique<ReusedStep>(session, layer, 1, &done_));
    }
    Gate gate;
    steps[0]->HoldAt(&gate);
    for (const auto& step : steps) engine().Submit(step->call());
    gate.Pass();
    done_.Wait(static_cast<int64_t>(steps.size()));
  }

  // Of steps of one token each, by one session and by several.
  void ExpectAllocationsPerStep(int64_t expected, const std::shared_ptr<const Model>& model,
                                std::optional<int32_t> layer) {
    WarmUp(model, layer);
    for (const size_t sessions : {1, 5}) {
      const Steps steps = MakeSteps(model, sessions, layer, 1);
      for (int64_t t = 0; t < kTokensPerSession; ++t) {
        const int64_t before = AllocationCount();
        Run(steps);
        const int64_t count = AllocationCount() - before;
        if (t % kTokensPerBlock == 0) continue;  // each session takes a new block
        ASSERT_EQ(count, expected * static_cast<int64_t>(sessions)) << "token " << t;
      }
    }
  }

  Gate done_;
};

// Whatever the number of sessions and of tokens held: the object that a step is on its way through
// the engine, and its place in the list of what runs.
TEST_F(EngineAllocation, DecodeStepIsTwoAllocations) {
  ExpectAllocationsPerStep(2, SmallModel(1), 0);
}

// Two lists with an entry for each layer more.
TEST_F(EngineAllocation, DecodeStepThroughAllLayersIsFourAllocations) {
  ExpectAllocationsPerStep(4, SmallModel(3), std::nullopt);
}

}  // namespace
}  // namespace attnserve
