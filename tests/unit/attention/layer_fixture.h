// What the tests of AttentionLayer share.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_FIXTURE_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_FIXTURE_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/attention/layer_session.h"

namespace attnserve {

// Whether both hold the same bits: equal and of one sign, NaN or not.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A pool, a workspace and a runner to run layers with.
class LayerFixture : public ::testing::Test {
 protected:
  // The output of one pass over all tokens.
  std::vector<float> Whole(const AttentionLayer& layer, int64_t tokens, int64_t seed,
                           ParallelRunner& runner) {
    LayerSession session(layer, &pool_, tokens, seed);
    session.Step(0, tokens, runner, workspace_);
    return session.output();
  }
  std::vector<float> Whole(const AttentionLayer& layer, int64_t tokens, int64_t seed) {
    return Whole(layer, tokens, seed, inline_runner_);
  }

  KvBlockPool pool_{int64_t{1} << 28};
  LayerWorkspace workspace_;
  InlineRunner inline_runner_;
};

inline LayerSpec RotaryLayer() {
  LayerSpec spec = SelfSpec(64, 8, 2);
  spec.attention.position = RotaryPosition();
  spec.attention.query_norm.kind = spec.attention.key_norm.kind = HeadNorm::Kind::kRms;
  return spec;
}

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_FIXTURE_H_
