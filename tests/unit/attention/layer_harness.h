// Runs a layer through AttentionLayer, KvSequence and KvBlockPool as the engine does, from the
// same description the reference takes.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_HARNESS_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_HARNESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lib/attention/attention_layer.h"
#include "lib/attention/layer_spec.h"
#include "lib/attention/reference.h"
#include "lib/base/element_type.h"
#include "lib/base/parallel.h"
#include "lib/cache/kv_block_pool.h"

namespace attnserve {

// How weights lie in memory. Their values must be exact in `dtype`.
struct WeightForm {
  DType dtype = DType::kF32;
  bool transposed = false;  // [out, in] instead of [in, out]
};

// Tokens [begin, end) of a sequence in one pass. A begin below the tokens held truncates first.
struct Step {
  int64_t begin = 0;
  int64_t end = 0;
  bool junk = false;  // NaN instead of the sequence's x, q, k, v, to be truncated away
};

// How a sequence is run.
struct RunPlan {
  std::vector<Step> steps;          // empty: one pass over all queries
  std::vector<int64_t> key_rows;    // sizes of AppendKeys calls within a pass; empty: one
  std::vector<int64_t> query_rows;  // sizes of Attend calls within a pass; empty: one
  std::vector<Stage> stages;
  DType io_dtype = DType::kF32;  // of x, context, q, k, v: their values must be exact in it
  DType output_dtype = DType::kF32;
  DType stage_dtype = DType::kF32;
  DType mask_dtype = DType::kF32;  // of an additive mask
  bool head_major = false;         // q, k, v and output of core attention as [heads, tokens, size]
  // Axes along which the bool or additive mask is constant; only one element of them is passed.
  bool mask_broadcast_heads = false;
  bool mask_broadcast_queries = false;
  bool mask_broadcast_keys = false;
  int64_t mask_keys = -1;          // keys from here on are masked by being absent; -1: none
  bool mask_lowest = false;        // pass the type's lowest value instead of -inf
  bool padding_as_length = false;  // pass query padding as valid_queries instead of query_mask
  DropoutOptions dropout;
  int64_t dropout_stream = 0;
  ParallelRunner* runner = nullptr;  // null: InlineRunner
};

// What came out. Stages have the reference's shapes; places a pass did not have (keys appended
// later) are NaN in scores and softcapped, -inf in masked, 0 in weights.
struct LayerRun {
  reference::Values output;
  std::map<Stage, reference::Values> stages;
  reference::Values present_key, present_value;  // as read back from the cache
  int64_t masked_rows = 0;
  int64_t nonfinite_values = 0;
};

// One layer, its pool and a workspace that all runs share.
class LayerHarness {
 public:
  // Completes `spec`. Fails the test and leaves ok() false where the layer cannot be made.
  LayerHarness(LayerSpec spec, const reference::Weights& weights, WeightForm form = {},
               GemmBackend backend = GemmBackend::kNative);
  ~LayerHarness();

  bool ok() const { return layer_ != nullptr; }
  const LayerSpec& spec() const { return spec_; }
  const AttentionLayer& layer() const { return *layer_; }
  const KvBlockPool& pool() const { return pool_; }

  // Runs one sequence. `input.dropped` is not used. Fails the test on an error.
  LayerRun Run(const reference::Input& input, const RunPlan& plan = {});

  // Runs whole sequences in common AppendKeys and Attend calls. Of the plans, `runner`, `key_rows`
  // and `query_rows` are the first one's; `steps` are not used.
  std::vector<LayerRun> RunTogether(const std::vector<const reference::Input*>& inputs,
                                    const std::vector<const RunPlan*>& plans);

 private:
  class Sequence;

  void Append(std::vector<Sequence*> sequences, const RunPlan& plan);
  void Attend(std::vector<Sequence*> sequences, const RunPlan& plan);

  LayerSpec spec_;
  KvBlockPool pool_;
  LayerWorkspace workspace_;
  std::unique_ptr<AttentionLayer> layer_;
};

// Runs tasks in an order of its own on several worker numbers of one thread: what depends on the
// order, or on which worker runs a task, shows.
class ShuffledRunner final : public ParallelRunner {
 public:
  explicit ShuffledRunner(uint64_t seed) : state_(seed) {}
  int worker_count() const override { return 3; }
  void Run(int64_t task_count, absl::FunctionRef<void(int64_t task, int worker)> body) override;

 private:
  uint64_t state_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_HARNESS_H_
