// Sequences of a core-attention layer, filled with numbers, for benchmarks of attention alone.
#ifndef ATTNSERVE_TESTS_BENCH_CORE_SEQUENCES_H_
#define ATTNSERVE_TESTS_BENCH_CORE_SEQUENCES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/attention/attention_layer.h"
#include "lib/cache/kv_block_pool.h"
#include "lib/cache/kv_sequence.h"
#include "lib/engine/worker_pool.h"

namespace attnserve::bench {

struct CoreShape {
  int64_t sequences = 1;
  int64_t tokens = 0;   // held by each sequence
  int64_t queries = 1;  // the last of them
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_size = 64;
  DType cache_dtype = DType::kF32;
};

std::vector<float> RandomFloats(int64_t count, uint32_t seed);

class CoreSequences {
 public:
  CoreSequences(const CoreShape& shape, int threads);

  // Attends the queries of all sequences, in one call.
  void Attend();

  double cache_bytes() const;
  double operations() const;  // multiplications and additions of visible scores and values

 private:
  CoreShape shape_;
  WorkerPool workers_;
  KvBlockPool pool_;
  std::unique_ptr<AttentionLayer> layer_;
  LayerWorkspace workspace_;
  std::vector<std::unique_ptr<KvSequence>> caches_;
  std::vector<float> queries_, outputs_;
  std::vector<LayerPass> passes_;
  std::vector<PassRows> rows_;
};

}  // namespace attnserve::bench

#endif  // ATTNSERVE_TESTS_BENCH_CORE_SEQUENCES_H_
