// Runs a loaded layer over one sequence.
#ifndef ATTNSERVE_TESTS_UNIT_MODEL_RUN_LAYER_H_
#define ATTNSERVE_TESTS_UNIT_MODEL_RUN_LAYER_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "lib/attention/attention_layer.h"
#include "lib/cache/kv_block_pool.h"
#include "lib/cache/kv_sequence.h"

namespace attnserve {

// Output [T, d_out] of self-attention over x [T, d_in], all tokens in one pass.
inline std::vector<float> RunSelfAttention(const AttentionLayer& layer,
                                           const std::vector<float>& x) {
  const LayerSpec& spec = layer.spec();
  const int64_t tokens = static_cast<int64_t>(x.size()) / spec.input_size;
  KvBlockPool pool(int64_t{1} << 28);
  KvSequence cache(layer.kv_layout(), &pool);
  EXPECT_EQ(cache.Reserve(tokens), absl::OkStatus());
  cache.Extend(tokens, nullptr);

  std::vector<float> output(static_cast<size_t>(tokens * spec.output_size));
  LayerPass pass;
  pass.x = {DType::kF32, x.data(), tokens, spec.input_size};
  pass.cache = &cache;
  pass.output = {DType::kF32, output.data(), spec.output_size, spec.value_head_size};
  InlineRunner runner;
  LayerWorkspace workspace;
  const PassRows keys{&pass, 0, layer.key_rows(pass)};
  EXPECT_EQ(layer.AppendKeys({keys}, runner, workspace), absl::OkStatus());
  const PassRows queries{&pass, 0, layer.query_rows(pass)};
  EXPECT_EQ(layer.Attend({queries}, runner, workspace), absl::OkStatus());
  return output;
}

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_MODEL_RUN_LAYER_H_
