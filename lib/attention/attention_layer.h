// An attention layer with its weights, and the two halves of a pass through it.
#ifndef ATTNSERVE_LIB_ATTENTION_ATTENTION_LAYER_H_
#define ATTNSERVE_LIB_ATTENTION_ATTENTION_LAYER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/attention/layer_spec.h"
#include "lib/attention/sequence.h"
#include "lib/base/parallel.h"
#include "lib/cache/kv_sequence.h"
#include "lib/gemm/packed_matrix.h"

namespace attnserve {

// Weights as they lie in a file; copied by AttentionLayer::Create. Biases are empty where the layer
// has none.
struct LayerWeights {
  WeightView query;   // in = d_in,  out = H * d_k
  WeightView key;     // in = d_in or d_ctx, out = G * d_k
  WeightView value;   // in = d_in or d_ctx, out = G * d_v
  WeightView output;  // in = H * d_v, out = d_out; data null without output projection
  std::vector<float> query_bias;
  std::vector<float> key_bias;
  std::vector<float> value_bias;
  std::vector<float> output_bias;
};

class LayerWorkspace;

// One sequence's pass through one layer. The caller fills it and keeps everything it points to
// alive.
//
// Life of a pass: the caller reserves room in `cache` and calls Extend for the new tokens; then
// AppendKeys over all of key_rows(), then Attend over all of query_rows(), each in pieces of any
// size and order. Attend writes outputs and stages; nothing else changes.
struct LayerPass {
  // Model layers: x [T, d_in]; cross-attention with a context still to project: context [S, d_ctx].
  RowsView x;
  RowsView context;
  // Core attention.
  HeadsView query;  // [T, H, d_k]
  HeadsView key;    // [N, G, d_k] new keys
  HeadsView value;  // [N, G, d_v]

  KvSequence* cache = nullptr;  // holds all S keys, past and new; of the context in cross-attention
  int64_t past_tokens = 0;      // P: index in `cache` of the first new key
  // Positions of the queries [T] and of the new keys [N]; null: base + index.
  const int64_t* query_positions = nullptr;
  const int64_t* key_positions = nullptr;
  int64_t query_position_base = 0;
  int64_t key_position_base = 0;

  SequenceMasks masks;
  DropoutOptions dropout;
  int64_t dropout_stream = 0;  // distinguishes batch rows and layers under one seed

  OutputTarget output;
  StageTargets stages;

  // Counted by Attend, added up over its calls.
  int64_t masked_rows = 0;       // (head, query) rows with nothing to attend
  int64_t nonfinite_values = 0;  // output elements that are NaN or infinite
};

// Rows [begin, end) of one pass.
struct PassRows {
  LayerPass* pass = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

// Immutable after Create; methods may be called from many threads with different workspaces.
class AttentionLayer {
 public:
  // `spec` has been completed by CompleteLayerSpec. BAD_SHAPE names a weight whose size does not
  // fit.
  static absl::StatusOr<std::unique_ptr<AttentionLayer>> Create(const LayerSpec& spec,
                                                                const LayerWeights& weights,
                                                                GemmBackend backend);
  // A core-attention layer, or the function of an Attend call: no weights.
  static absl::StatusOr<std::unique_ptr<AttentionLayer>> CreateCore(const LayerSpec& spec);
  ~AttentionLayer();

  const LayerSpec& spec() const;
  int64_t weight_bytes() const;
  // Whether any product of many rows runs on oneDNN; else all run on our panel kernel.
  bool uses_onednn() const;
  KvLayout kv_layout() const;

  // New keys of a pass: x rows in self-attention, context rows in cross-attention, key rows in core
  // attention.
  int64_t key_rows(const LayerPass& pass) const;
  // Queries of a pass: T.
  int64_t query_rows(const LayerPass& pass) const;

  // Projects, normalises, rotates and stores the keys and values of the given new tokens, all in
  // one product.
  absl::Status AppendKeys(absl::Span<const PassRows> rows, ParallelRunner& runner,
                          LayerWorkspace& workspace) const;

  // Projects the given queries, attends, projects the output. Every key a query may see has been
  // appended.
  absl::Status Attend(absl::Span<const PassRows> rows, ParallelRunner& runner,
                      LayerWorkspace& workspace) const;

  struct Impl;  // attention_layer_impl.h, for this folder alone

 private:
  explicit AttentionLayer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Memory of passes in flight; grows to the largest call seen, then allocates no more. One thread at
// a time.
class LayerWorkspace {
 public:
  LayerWorkspace();
  ~LayerWorkspace();

  struct Impl;  // attention_layer_impl.h, for this folder alone

 private:
  friend class AttentionLayer;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_ATTENTION_LAYER_H_
