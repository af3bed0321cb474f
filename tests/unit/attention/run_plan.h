// How a test runs a sequence through a layer, and what comes out.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_RUN_PLAN_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_RUN_PLAN_H_

#include <cstdint>
#include <map>
#include <vector>

#include "lib/attention/reference.h"
#include "lib/attention/sequence.h"
#include "lib/base/element_type.h"
#include "lib/base/parallel.h"

namespace attnserve {

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

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_RUN_PLAN_H_
