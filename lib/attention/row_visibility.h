// Which keys one query of one head may attend, and what is added to their scores.
#ifndef ATTNSERVE_LIB_ATTENTION_ROW_VISIBILITY_H_
#define ATTNSERVE_LIB_ATTENTION_ROW_VISIBILITY_H_

#include <cstdint>
#include <vector>

#include "lib/attention/attention_layer.h"
#include "lib/simd/attention.h"

namespace attnserve {

// Turns the masks of a pass into rows for the kernels: ranges where that is enough, else a bit per
// key and a summand per key.
class RowVisibility {
 public:
  RowVisibility(const LayerSpec& spec, const LayerPass& pass);

  int64_t keys() const { return keys_; }  // S
  int64_t blocks() const { return BlocksForTokens(keys_); }

  // Whether rows need mask bits, and summands; whether these differ between heads.
  bool needs_bits() const { return needs_bits_; }
  bool needs_bias() const { return needs_bias_; }
  bool differs_by_head() const { return pass_.masks.attention_mask.head_stride != 0; }
  bool drops() const { return pass_.dropout.p > 0.0f; }

  // Whether query `query` is padding, whose output is zero.
  bool IsPadding(int64_t query) const;

  // Position of a query.
  int64_t QueryPosition(int64_t query) const;

  // Range, sinks, position and slope of (head, query) in `row`; its other members are untouched.
  void FillRange(int64_t head, int64_t query, simd::AttentionRow* row) const;

  // Bits [blocks()] and summands [blocks() * 64] of (head, query).
  void FillBits(int64_t head, int64_t query, uint64_t* bits) const;
  void FillBias(int64_t head, int64_t query, float* bias) const;
  // Bits [blocks()]: 0 where the weight is dropped.
  void FillKeep(int64_t head, int64_t query, uint64_t* keep) const;

 private:
  bool BitIsSet(int64_t head, int64_t query, int64_t key) const;

  const LayerSpec& spec_;
  const LayerPass& pass_;
  const float* slopes_ = nullptr;  // [H] or null
  int64_t keys_;
  bool window_by_bits_;
  bool needs_bits_;
  bool needs_bias_;
  float lowest_ = 0.0f;  // summands at or below it mask
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_ROW_VISIBILITY_H_
