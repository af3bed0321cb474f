// One sequence on its way through a layer: its cache, the current pass and everything the pass
// points to.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_SEQUENCE_RUN_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_SEQUENCE_RUN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/attention/attention_layer.h"
#include "lib/attention/reference.h"
#include "lib/cache/kv_block_pool.h"
#include "lib/cache/kv_sequence.h"
#include "tests/unit/attention/run_plan.h"
#include "tests/unit/attention/typed_elements.h"

namespace attnserve {

class SequenceRun {
 public:
  // What is given outlives the run. Past keys and values are in the cache afterwards.
  SequenceRun(const AttentionLayer& layer, KvBlockPool* pool, const reference::Input& input,
              const RunPlan& plan);

  // Prepares the pass of a step: room in the cache, inputs, positions, masks, targets.
  void Begin(const Step& step);

  LayerPass& pass() { return *pass_; }
  int64_t key_rows() const { return layer_.key_rows(*pass_); }
  int64_t query_rows() const { return layer_.query_rows(*pass_); }

  // Reads what the pass wrote.
  void End();

  // Everything that came out, the cache included.
  LayerRun Finish();

 private:
  int64_t NewKeys() const;
  bool HeadMajorOutput() const;
  void WritePast();
  HeadsView SetHeads(const reference::Values& all, int64_t heads, int64_t size, int64_t begin,
                     int64_t end, bool junk, Elements* elements) const;
  RowsView SetRows(const reference::Values& all, int64_t width, int64_t begin, int64_t end,
                   bool junk, Elements* elements) const;
  void SetInputs(bool junk);
  void SetPositions();
  void SetMasks();
  void SetAttentionMask(AttentionMaskView* view);
  void SetTargets();
  int64_t StageWidth(Stage stage, int64_t keys) const;
  void ScatterStage(Stage stage, const Elements& from);

  const AttentionLayer& layer_;
  const LayerSpec& spec_;
  const reference::Input& input_;
  const RunPlan& plan_;
  KvSequence cache_;
  int64_t past_;   // P
  int64_t added_;  // N
  LayerRun run_;

  std::optional<LayerPass> pass_;
  int64_t begin_ = 0, end_ = 0;           // queries of the pass
  int64_t first_key_ = 0, last_key_ = 0;  // its new keys, counted from past_
  Elements x_, key_, value_, output_, float_mask_;
  std::vector<Elements> stages_;
  std::vector<int64_t> key_positions_;
  std::vector<uint8_t> key_mask_, tree_mask_, query_mask_, bool_mask_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_SEQUENCE_RUN_H_
