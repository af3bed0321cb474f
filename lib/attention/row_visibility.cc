#include "lib/attention/row_visibility.h"

#include <algorithm>
#include <cstring>

#include "lib/attention/dropout.h"
#include "lib/base/tensor.h"

namespace attnserve {
namespace {

float MaskElement(const AttentionMaskView& mask, int64_t head, int64_t query, int64_t key) {
  const int64_t index = head * mask.head_stride + query * mask.query_stride + key * mask.key_stride;
  const auto* bytes = static_cast<const uint8_t*>(mask.data);
  if (mask.dtype == DType::kBool) return bytes[index] != 0 ? 1.0f : 0.0f;
  float value;
  LoadAsF32(mask.dtype, bytes + index * static_cast<int64_t>(ElementSize(mask.dtype)), 1, &value);
  return value;
}

bool BeyondMask(const AttentionMaskView& mask, int64_t key) {
  return mask.key_stride != 0 && key >= mask.key_count;
}

}  // namespace

RowVisibility::RowVisibility(const LayerSpec& spec, const LayerPass& pass)
    : spec_(spec), pass_(pass), keys_(pass.cache->length()) {
  const Window& window = spec.attention.window;
  const bool windowed = window.left >= 0 || window.right >= 0;
  window_by_bits_ = windowed && !pass.cache->positions().empty();
  const AttentionMaskView& mask = pass.masks.attention_mask;
  needs_bits_ = window_by_bits_ || mask.data != nullptr || pass.masks.key_mask != nullptr ||
                pass.masks.tree_mask != nullptr;
  needs_bias_ = mask.data != nullptr && mask.dtype != DType::kBool;
  if (needs_bias_) lowest_ = LowestFinite(mask.dtype);
  if (const auto* alibi = std::get_if<AlibiPosition>(&spec.attention.position)) {
    slopes_ = alibi->slopes.data();
  }
}

bool RowVisibility::IsPadding(int64_t query) const {
  const SequenceMasks& masks = pass_.masks;
  if (masks.valid_queries >= 0 && query >= masks.valid_queries) return true;
  return masks.query_mask != nullptr && masks.query_mask[query] == 0;
}

int64_t RowVisibility::QueryPosition(int64_t query) const {
  return pass_.query_positions != nullptr ? pass_.query_positions[query]
                                          : pass_.query_position_base + query;
}

void RowVisibility::FillRange(int64_t head, int64_t query, simd::AttentionRow* row) const {
  const int64_t position = QueryPosition(query);
  const Window& window = spec_.attention.window;
  row->begin = 0;
  row->end = keys_;
  if (!window_by_bits_) {
    if (window.left >= 0) row->begin = std::clamp<int64_t>(position - window.left, 0, keys_);
    if (window.right >= 0) row->end = std::clamp<int64_t>(position + window.right + 1, 0, keys_);
  }
  row->sinks = spec_.attention.sink_token_count;
  row->key_end = keys_;
  if (pass_.masks.valid_keys >= 0) row->key_end = std::min(row->key_end, pass_.masks.valid_keys);
  if (spec_.attention.causal) {
    row->key_end = std::clamp<int64_t>(pass_.masks.causal_offset + query + 1, 0, row->key_end);
  }
  row->query_position = position;
  row->alibi_slope = slopes_ != nullptr ? slopes_[head] : 0.0f;
}

bool RowVisibility::BitIsSet(int64_t head, int64_t query, int64_t key) const {
  const SequenceMasks& masks = pass_.masks;
  if (masks.key_mask != nullptr && masks.key_mask[key] == 0) return false;
  if (masks.tree_mask != nullptr && key >= pass_.past_tokens) {
    const int64_t new_tokens = keys_ - pass_.past_tokens;
    if (masks.tree_mask[query * new_tokens + key - pass_.past_tokens] == 0) return false;
  }
  if (window_by_bits_ && key >= spec_.attention.sink_token_count) {
    const Window& window = spec_.attention.window;
    const int64_t distance =
        QueryPosition(query) - pass_.cache->positions()[static_cast<size_t>(key)];
    if (window.left >= 0 && distance > window.left) return false;
    if (window.right >= 0 && -distance > window.right) return false;
  }
  if (masks.attention_mask.data == nullptr) return true;
  if (BeyondMask(masks.attention_mask, key)) return false;
  const float value = MaskElement(masks.attention_mask, head, query, key);
  return needs_bias_ ? value > lowest_ : value != 0.0f;
}

void RowVisibility::FillBits(int64_t head, int64_t query, uint64_t* bits) const {
  std::fill_n(bits, blocks(), 0);
  for (int64_t key = 0; key < keys_; ++key) {
    if (BitIsSet(head, query, key)) bits[key / 64] |= uint64_t{1} << (key % 64);
  }
}

void RowVisibility::FillBias(int64_t head, int64_t query, float* bias) const {
  const AttentionMaskView& mask = pass_.masks.attention_mask;
  std::fill_n(bias, blocks() * kTokensPerBlock, 0.0f);
  for (int64_t key = 0; key < keys_ && !BeyondMask(mask, key); ++key) {
    const float value = MaskElement(mask, head, query, key);
    if (value > lowest_) bias[key] = value;
  }
}

void RowVisibility::FillKeep(int64_t head, int64_t query, uint64_t* keep) const {
  std::fill_n(keep, blocks(), 0);
  for (int64_t key = 0; key < keys_; ++key) {
    if (!DropsWeight(pass_.dropout, pass_.dropout_stream, head, query, key)) {
      keep[key / 64] |= uint64_t{1} << (key % 64);
    }
  }
}

}  // namespace attnserve
