// One sequence of one layer, run through AttentionLayer with plain floats: what tests of the layer
// itself share.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_SESSION_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_SESSION_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "lib/attention/attention_layer.h"
#include "lib/attention/layer_spec.h"
#include "lib/base/parallel.h"
#include "lib/base/tensor.h"
#include "lib/cache/kv_block_pool.h"
#include "lib/cache/kv_sequence.h"
#include "tests/unit/attention/simple_layers.h"

namespace attnserve {

// Numbers that look random and are exact in every float type.
inline std::vector<float> Numbers(int64_t count, int64_t seed) {
  std::vector<float> numbers(static_cast<size_t>(count));
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 1u;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(static_cast<int32_t>(state >> 24) - 128) / 64.0f;
  }
  return numbers;
}

// Elements in the given type.
inline std::vector<uint8_t> Stored(const std::vector<float>& values, DType dtype) {
  std::vector<uint8_t> bytes(values.size() * ElementSize(dtype));
  StoreFromF32(values.data(), static_cast<int64_t>(values.size()), dtype, bytes.data());
  return bytes;
}

inline LayerSpec SelfSpec(int64_t width, int64_t heads, int64_t kv_heads) {
  LayerSpec spec;
  spec.input_size = width;
  spec.head_count = heads;
  spec.kv_head_count = kv_heads;
  spec.query_bias = spec.key_bias = spec.value_bias = true;
  spec.output_projection = spec.output_bias = true;
  spec.attention.causal = true;
  return spec;
}

// A layer with weights of its own; null and a failed test if it cannot be made.
inline std::unique_ptr<AttentionLayer> MakeLayer(LayerSpec spec,
                                                 GemmBackend backend = GemmBackend::kNative) {
  absl::Status status = CompleteLayerSpec("", &spec);
  EXPECT_TRUE(status.ok()) << status;
  if (!status.ok()) return nullptr;
  absl::StatusOr<std::unique_ptr<AttentionLayer>> layer;
  if (spec.kind == LayerKind::kCoreAttention) {
    layer = AttentionLayer::CreateCore(spec);
  } else {
    std::vector<std::vector<float>> held;
    LayerWeights weights;
    const auto view = [&](int64_t in, int64_t out) {
      held.push_back(Numbers(in * out, 100 + static_cast<int64_t>(held.size())));
      for (float& weight : held.back()) weight /= 32.0f;
      return WeightView{DType::kF32, held.back().data(), in, out, out, 1};
    };
    const bool cross = spec.kind == LayerKind::kCrossAttention;
    const int64_t source = cross ? spec.context_size : spec.input_size;
    weights.query = view(spec.input_size, spec.query_width());
    weights.key = view(source, spec.key_width());
    weights.value = view(source, spec.value_width());
    if (spec.output_projection) weights.output = view(spec.context_width(), spec.output_size);
    if (spec.query_bias) weights.query_bias = Numbers(spec.query_width(), 1);
    if (spec.key_bias) weights.key_bias = Numbers(spec.key_width(), 2);
    if (spec.value_bias) weights.value_bias = Numbers(spec.value_width(), 3);
    if (spec.output_bias) weights.output_bias = Numbers(spec.output_size, 4);
    layer = AttentionLayer::Create(spec, weights, backend);
  }
  EXPECT_TRUE(layer.ok()) << layer.status();
  return layer.ok() ? *std::move(layer) : nullptr;
}

// Runs tasks on threads that race for them.
class ThreadRunner final : public ParallelRunner {
 public:
  explicit ThreadRunner(int workers) : workers_(workers) {}
  int worker_count() const override { return workers_; }
  int64_t most_tasks() const { return most_tasks_; }

  void Run(int64_t task_count, absl::FunctionRef<void(int64_t task, int worker)> body) override {
    most_tasks_ = std::max(most_tasks_, task_count);
    std::atomic<int64_t> next{0};
    std::vector<std::thread> threads;
    for (int worker = 0; worker < workers_; ++worker) {
      threads.emplace_back([&, worker] {
        for (int64_t task = next++; task < task_count; task = next++) body(task, worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int workers_;
  int64_t most_tasks_ = 0;
};

// One sequence of a self- or core-attention layer: its tokens, its cache and the pass under way.
// Core attention's q, k and v are [tokens, heads, size].
class LayerSession {
 public:
  LayerSession(const AttentionLayer& layer, KvBlockPool* pool, int64_t tokens, int64_t seed)
      : layer_(layer), cache_(layer.kv_layout(), pool), tokens_(tokens) {
    const LayerSpec& spec = layer.spec();
    if (spec.kind == LayerKind::kCoreAttention) {
      q_ = Numbers(tokens * spec.query_width(), seed);
      k_ = Numbers(tokens * spec.key_width(), seed + 1000);
      v_ = Numbers(tokens * spec.value_width(), seed + 2000);
    } else {
      x_ = Numbers(tokens * spec.input_size, seed);
    }
    output_.assign(static_cast<size_t>(tokens * spec.output_size), -9.0f);
  }

  int64_t tokens() const { return tokens_; }
  KvSequence& cache() { return cache_; }
  LayerPass& pass() { return *pass_; }
  std::vector<float>& q() { return q_; }
  std::vector<float>& v() { return v_; }
  std::vector<float>& x() { return x_; }
  const std::vector<float>& output() const { return output_; }

  // Prepares the pass over tokens [begin, end), the cache holding those before.
  LayerPass& Begin(int64_t begin, int64_t end) {
    const LayerSpec& spec = layer_.spec();
    EXPECT_EQ(cache_.length(), begin);
    EXPECT_TRUE(cache_.Reserve(end).ok());
    cache_.Extend(end - begin, nullptr);
    LayerPass& pass = pass_.emplace();
    pass.cache = &cache_;
    pass.past_tokens = pass.query_position_base = pass.key_position_base = begin;
    pass.masks.causal_offset = begin;
    const int64_t count = end - begin;
    if (spec.kind == LayerKind::kCoreAttention) {
      pass.query = View(q_, begin, count, spec.head_count, spec.key_head_size);
      pass.key = View(k_, begin, count, spec.kv_head_count, spec.key_head_size);
      pass.value = View(v_, begin, count, spec.kv_head_count, spec.value_head_size);
    } else {
      pass.x = {DType::kF32, x_.data() + begin * spec.input_size, count, spec.input_size};
    }
    pass.output = {DType::kF32, output_.data() + begin * spec.output_size, spec.output_size,
                   spec.output_projection ? 0 : spec.value_head_size};
    return pass;
  }

  PassRows KeyRows() { return {&*pass_, 0, layer_.key_rows(*pass_)}; }
  PassRows QueryRows() { return {&*pass_, 0, layer_.query_rows(*pass_)}; }

  // Both halves of the pass.
  void Finish(ParallelRunner& runner, LayerWorkspace& workspace) {
    ExpectOk(layer_.AppendKeys({KeyRows()}, runner, workspace));
    ExpectOk(layer_.Attend({QueryRows()}, runner, workspace));
  }

  // Tokens [begin, end) in one pass.
  void Step(int64_t begin, int64_t end, ParallelRunner& runner, LayerWorkspace& workspace) {
    Begin(begin, end);
    Finish(runner, workspace);
  }

  static void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

 private:
  static HeadsView View(const std::vector<float>& values, int64_t begin, int64_t count,
                        int64_t heads, int64_t size) {
    return {DType::kF32, values.data() + begin * heads * size, count, heads, size, heads * size,
            size};
  }

  const AttentionLayer& layer_;
  KvSequence cache_;
  int64_t tokens_;
  std::vector<float> x_, q_, k_, v_;
  std::vector<float> output_;  // [T, d_out]
  std::optional<LayerPass> pass_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_SESSION_H_
