// Which keys one query of one head may attend, and what is added to their scores.
#ifndef ATTNSERVE_LIB_ATTENTION_ROW_VISIBILITY_H_
#define ATTNSERVE_LIB_ATTENTION_ROW_VISIBILITY_H_

#include <cstdint>

#include "lib/attention/attention_layer.h"
#include "lib/simd/attention.h"

namespace attnserve {

// Whether query `query` is padding, which attends nothing and whose output is zero.
bool IsPaddingQuery(const SequenceMasks& masks, int64_t query);

// Some blocks of keys: [first, first + count).
struct BlockRange {
  int64_t first = 0;
  int64_t count = 0;
};

// Turns the masks of a pass into rows for the kernels: ranges where that is enough, else a bit per
// key and a summand per key. Refers to `spec` and `pass`, whose cache does not change meanwhile.
class RowVisibility {
 public:
  RowVisibility(const LayerSpec& spec, const LayerPass& pass);

  int64_t keys() const { return keys_; }  // S
  int64_t blocks() const { return BlocksForTokens(keys_); }

  // Whether rows need mask bits, and summands; whether these differ between heads and queries.
  bool needs_bits() const { return needs_bits_; }
  bool needs_bias() const { return needs_bias_; }
  bool differs_by_head() const { return differs_by_head_; }
  bool differs_by_query() const { return differs_by_query_; }
  bool drops() const { return pass_.dropout.p > 0.0f; }

  // Range, sinks, position and slope of (head, query) in `row`; its other members are untouched.
  // The range is empty for padding.
  void FillRange(int64_t head, int64_t query, simd::AttentionRow* row) const;

  // Bits [blocks()] and summands [blocks() * 64] of (head, query): writes those of some blocks, to
  // their places. Keys from keys() on have no bit.
  void FillBits(int64_t head, int64_t query, BlockRange range, uint64_t* bits) const;
  void FillBias(int64_t head, int64_t query, BlockRange range, float* bias) const;
  // Bits [blocks()], likewise: 0 where the weight is dropped.
  void FillKeep(int64_t head, int64_t query, BlockRange range, uint64_t* keep) const;

 private:
  int64_t QueryPosition(int64_t query) const;
  uint64_t WindowBits(int64_t query, int64_t first_key, int64_t count) const;
  uint64_t TreeBits(int64_t query, int64_t first_key, int64_t count) const;
  uint64_t MaskBits(int64_t head, int64_t query, int64_t first_key, int64_t count) const;
  const uint8_t* MaskRow(int64_t head, int64_t query) const;

  const LayerSpec& spec_;
  const LayerPass& pass_;
  const float* slopes_ = nullptr;  // [H] or null
  int64_t keys_;
  int64_t sinks_;  // keys before this one are in every window
  bool window_by_bits_;
  bool needs_bits_;
  bool needs_bias_;
  bool differs_by_head_;
  bool differs_by_query_;
  float lowest_ = 0.0f;  // summands at or below it mask
};

// Whether a row with the range of `row` may see keys of these blocks, masks aside.
bool RangeReachesBlocks(const simd::AttentionRow& row, BlockRange range);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_ROW_VISIBILITY_H_
