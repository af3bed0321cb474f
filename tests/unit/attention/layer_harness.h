// Runs a layer through AttentionLayer, KvSequence and KvBlockPool as the engine does, from the
// same description the reference takes.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_HARNESS_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_LAYER_HARNESS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/attention/attention_layer.h"
#include "lib/attention/layer_spec.h"
#include "lib/attention/reference.h"
#include "lib/base/element_type.h"
#include "lib/base/parallel.h"
#include "lib/cache/kv_block_pool.h"
#include "tests/unit/attention/run_plan.h"
#include "tests/unit/attention/sequence_run.h"

namespace attnserve {

// How weights lie in memory. Their values must be exact in `dtype`.
struct WeightForm {
  DType dtype = DType::kF32;
  bool transposed = false;  // [out, in] instead of [in, out]
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
  void Append(const std::vector<SequenceRun*>& sequences, const RunPlan& plan);
  void Attend(const std::vector<SequenceRun*>& sequences, const RunPlan& plan);

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
