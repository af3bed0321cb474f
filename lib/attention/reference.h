// The naive float64 twin of everything in lib/attention: what tests compare with. Loops over
// elements, no tiles, no cache, no shared code with the kernels.
#ifndef ATTNSERVE_LIB_ATTENTION_REFERENCE_H_
#define ATTNSERVE_LIB_ATTENTION_REFERENCE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "lib/attention/layer_spec.h"

namespace attnserve::reference {

// A dense row-major matrix or tensor of doubles.
using Values = std::vector<double>;

// Matrices [in, out] and biases, in double. Empty where the layer has none.
struct Weights {
  Values query, key, value, output;
  Values query_bias, key_bias, value_bias, output_bias;
};

// One sequence. `past_*` are keys and values as cached (normalised, rotated). The element type of
// the cache is applied to new keys and values (round to nearest even), unless it is F32.
struct Input {
  int64_t query_count = 0;  // T
  Values x;                 // [T, d_in]
  Values context;           // [N, d_ctx], cross-attention
  Values query;             // [T, H, d_k], core attention
  Values key;               // [N, G, d_k], core attention
  Values value;             // [N, G, d_v], core attention
  Values past_key;          // [P, G, d_k]
  Values past_value;        // [P, G, d_v]
  // Self-attention: past_* hold the keys and values of x too, as its last T tokens; x gives queries
  // only. (A cross-attention layer whose context was cached before has no `context`.)
  bool keys_cached = false;
  std::vector<int64_t> past_positions;   // [P]; empty: index
  std::vector<int64_t> query_positions;  // [T]; empty: causal_offset + index
  std::vector<int64_t> key_positions;    // [N]; empty: P + index

  // Masks: all of them over S = P + N keys; empty: none.
  int64_t causal_offset = 0;        // query i attends key j only if j <= causal_offset + i
  int64_t valid_keys = -1;          // -1: all
  std::vector<bool> key_mask;       // [S]
  std::vector<bool> bool_mask;      // [H, T, S] true = attend
  Values additive_mask;             // [H, T, S]; -inf masks
  std::vector<bool> tree_mask;      // [T, T] among the last T keys
  std::vector<bool> query_padding;  // [T] true = padding: attends nothing, output is zero

  // Whether the attention weight of (head, query, key) is dropped; null: none.
  std::function<bool(int64_t head, int64_t query, int64_t key)> dropped;
  double dropout_p = 0.0;
};

struct Output {
  Values output;                               // [T, d_out], or [T, H, d_v] without projection
  Values scores, softcapped, masked, weights;  // [H, T, S]
  Values lse;                                  // [H, T]
  Values context;                              // [H, T, d_v]
  Values query;                                // [T, H, d_k] as it meets the keys
  Values present_key, present_value;           // [S, G, d_k], [S, G, d_v]
};

// softmax(softcap(q k^T scale) + masks) v as lib/attention/layer_spec.h and the proto describe it.
Output Run(const LayerSpec& spec, const Weights& weights, const Input& input);

}  // namespace attnserve::reference

#endif  // ATTNSERVE_LIB_ATTENTION_REFERENCE_H_
