#include "tests/bench/core_sequences.h"

#include <algorithm>

#include "tests/bench/check.h"

namespace attnserve::bench {

std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  std::vector<float> floats(static_cast<size_t>(count));
  uint32_t state = seed * 2654435761u + 1u;
  for (float& value : floats) {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes, "quick and dirty" generator
    value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
  return floats;
}

CoreSequences::CoreSequences(const CoreShape& shape, int threads)
    : shape_(shape), workers_(threads), pool_(int64_t{1} << 40) {
  LayerSpec spec;
  spec.kind = LayerKind::kCoreAttention;
  spec.head_count = shape.heads;
  spec.kv_head_count = shape.kv_heads;
  spec.key_head_size = shape.head_size;
  spec.attention.causal = true;
  spec.cache_dtype = shape.cache_dtype;
  Check(CompleteLayerSpec("layer", &spec));
  layer_ = Check(AttentionLayer::CreateCore(spec));

  const int64_t query_width = shape.heads * shape.head_size;
  const int64_t key_width = shape.kv_heads * shape.head_size;
  queries_ = RandomFloats(shape.sequences * shape.queries * query_width, 1);
  outputs_.resize(queries_.size());
  for (int64_t s = 0; s < shape.sequences; ++s) {
    caches_.push_back(std::make_unique<KvSequence>(layer_->kv_layout(), &pool_));
    Check(caches_.back()->Reserve(shape.tokens));
  }
  // All sequences grow together, as in a server: their blocks lie mixed.
  constexpr int64_t kChunk = 256;
  for (int64_t begin = 0; begin < shape.tokens; begin += kChunk) {
    const int64_t count = std::min(kChunk, shape.tokens - begin);
    const std::vector<float> fresh = RandomFloats(count * key_width, 2);
    for (const auto& cache : caches_) {
      LayerPass pass;
      pass.cache = cache.get();
      pass.past_tokens = pass.key_position_base = begin;
      pass.key = {DType::kF32,     fresh.data(), count,          shape.kv_heads,
                  shape.head_size, key_width,    shape.head_size};
      pass.value = pass.key;
      cache->Extend(count, nullptr);
      Check(layer_->AppendKeys({{&pass, 0, count}}, workers_, workspace_));
    }
  }
  passes_.resize(static_cast<size_t>(shape.sequences));
  for (size_t s = 0; s < passes_.size(); ++s) {
    LayerPass& pass = passes_[s];
    const size_t at = s * static_cast<size_t>(shape.queries * query_width);
    pass.cache = caches_[s].get();
    pass.query = {DType::kF32,     &queries_[at], shape.queries,  shape.heads,
                  shape.head_size, query_width,   shape.head_size};
    pass.masks.causal_offset = pass.query_position_base = shape.tokens - shape.queries;
    pass.output = {DType::kF32, &outputs_[at], query_width, shape.head_size};
    rows_.push_back({&pass, 0, shape.queries});
  }
}

void CoreSequences::Attend() { Check(layer_->Attend(rows_, workers_, workspace_)); }

double CoreSequences::cache_bytes() const {
  const double heads = static_cast<double>(shape_.sequences * shape_.kv_heads);
  return heads * static_cast<double>(layer_->kv_layout().head_bytes() / kTokensPerBlock) *
         static_cast<double>(shape_.tokens);
}

double CoreSequences::operations() const {
  const double queries = static_cast<double>(shape_.queries);
  const double visible =
      queries * (static_cast<double>(shape_.tokens) - (queries - 1.0) / 2.0);  // of one head
  return 4.0 * static_cast<double>(shape_.sequences * shape_.heads * shape_.head_size) * visible;
}

}  // namespace attnserve::bench
