// What the tests of the engine share: steps over made-up tokens, and an engine of 64 MiB.
#ifndef ATTNSERVE_TESTS_UNIT_ENGINE_ENGINE_FIXTURE_H_
#define ATTNSERVE_TESTS_UNIT_ENGINE_ENGINE_FIXTURE_H_

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "lib/engine/engine.h"
#include "tests/unit/engine/engine_harness.h"

namespace attnserve {

constexpr int64_t kWidth = 24;
using Clock = std::chrono::steady_clock;

// Tokens [begin, end) of a sequence, as one step.
inline DecodeStep Tokens(const std::string& session, int layer, const Floats& x, int64_t begin,
                         int64_t end) {
  DecodeStep step;
  step.session = session;
  step.layer = layer;
  step.x.assign(x.begin() + begin * kWidth, x.begin() + end * kWidth);
  step.tokens = end - begin;
  step.width = kWidth;
  return step;
}

inline DecodeStep Token(const std::string& session, uint64_t seed) {
  return Tokens(session, 0, Noise(kWidth, seed), 0, 1);
}

inline bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() { options_.kv_budget_bytes = int64_t{64} << 20; }

  Engine& engine() {
    if (engine_ == nullptr) engine_ = std::make_unique<Engine>(options_);
    return *engine_;
  }
  std::string Create(std::shared_ptr<const Model> model, const std::string& id = "") {
    CreateSessionOptions options;
    options.id = id;
    options.model = std::move(model);
    auto created = engine().CreateSession(options);
    EXPECT_TRUE(created.ok()) << created.status();
    return created.ok() ? created->info.id : "";
  }
  int64_t Length(const std::string& session, size_t layer = 0) {
    auto info = engine().GetSession(session);
    return info.ok() ? info->layers[layer].length : -1;
  }
  void ExpectNothingHeld() {
    EXPECT_EQ(engine().stats().kv_charged_bytes, 0);
    EXPECT_EQ(engine().stats().kv_block_bytes, 0);
    EXPECT_EQ(engine().stats().scratch_bytes, 0);
  }

  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ENGINE_ENGINE_FIXTURE_H_
