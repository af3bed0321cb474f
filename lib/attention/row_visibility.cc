#include "lib/attention/row_visibility.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/attention/dropout.h"
#include "lib/base/tensor.h"
#include "lib/simd/vector_ops.h"

namespace attnserve {
namespace {

constexpr uint64_t kEachByte = 0x0101010101010101u;
constexpr uint64_t kLowBits = 0x7f7f7f7f7f7f7f7fu;  // of each byte

// Bit i = whether byte i of `bytes` is not 0. The product moves bit 0 of byte i to bit 56 + i.
uint64_t NonZeroBytes(uint64_t bytes) {
  const uint64_t upper = (((bytes & kLowBits) + kLowBits) | bytes) >> 7;
  return ((upper & kEachByte) * 0x0102040810204080u) >> 56;
}

uint64_t LowestBits(int64_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// Bit i = whether bytes[i] is not 0, for i < count <= 64.
uint64_t BitsOfBytes(const uint8_t* bytes, int64_t count) {
  uint64_t bits = 0;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, bytes + i, sizeof eight);
    bits |= NonZeroBytes(eight) << i;
  }
  for (; i < count; ++i) bits |= uint64_t{bytes[i] != 0} << i;
  return bits;
}

// The sum, or the nearest number that can be represented.
int64_t Saturated(int64_t a, int64_t b) {
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

// Elements [first, first + count) of a float mask's row, as far as they exist; `row` is its element
// 0. Returns how many there are.
int64_t LoadSummands(const AttentionMaskView& mask, const uint8_t* row, int64_t first,
                     int64_t count, float* target) {
  const int64_t size = static_cast<int64_t>(ElementSize(mask.dtype));
  if (mask.key_stride != 0) count = std::clamp<int64_t>(mask.key_count - first, 0, count);
  if (count == 0) return 0;
  if (mask.key_stride == 1) {
    simd::Widen(mask.dtype, row + first * size, count, target);
    return count;
  }
  for (int64_t i = 0; i < count; ++i) {
    LoadAsF32(mask.dtype, row + (first + i) * mask.key_stride * size, 1, target + i);
  }
  return count;
}

}  // namespace

bool IsPaddingQuery(const SequenceMasks& masks, int64_t query) {
  if (masks.valid_queries >= 0 && query >= masks.valid_queries) return true;
  return masks.query_mask != nullptr && masks.query_mask[query] == 0;
}

bool RangeReachesBlocks(const simd::AttentionRow& row, BlockRange range) {
  const int64_t begin = range.first * kTokensPerBlock;
  const int64_t end = std::min(row.key_end, (range.first + range.count) * kTokensPerBlock);
  return std::max(begin, row.begin) < std::min(end, row.end) || begin < std::min(end, row.sinks);
}

RowVisibility::RowVisibility(const LayerSpec& spec, const LayerPass& pass)
    : spec_(spec), pass_(pass), keys_(pass.cache->length()) {
  const Window& window = spec.attention.window;
  const bool windowed = window.left >= 0 || window.right >= 0;
  const SequenceMasks& masks = pass.masks;
  const AttentionMaskView& mask = masks.attention_mask;
  window_by_bits_ = windowed && !pass.cache->positions().empty();
  needs_bits_ = window_by_bits_ || mask.data != nullptr || masks.key_mask != nullptr ||
                masks.tree_mask != nullptr;
  needs_bias_ = mask.data != nullptr && mask.dtype != DType::kBool;
  differs_by_head_ = mask.data != nullptr && mask.head_stride != 0;
  differs_by_query_ = window_by_bits_ || masks.tree_mask != nullptr ||
                      (mask.data != nullptr && mask.query_stride != 0);
  if (needs_bias_) lowest_ = LowestFinite(mask.dtype);
  if (const auto* alibi = std::get_if<AlibiPosition>(&spec.attention.position)) {
    slopes_ = alibi->slopes.data();
  }
  sinks_ = std::min(spec.attention.sink_token_count, keys_);
  if (masks.key_mask == nullptr || !windowed) return;
  // Padding before the first tokens is none of them.
  int64_t tokens = 0;
  for (sinks_ = 0; sinks_ < keys_ && tokens < spec.attention.sink_token_count; ++sinks_) {
    tokens += masks.key_mask[sinks_] != 0 ? 1 : 0;
  }
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
  if (window.left >= 0 && !window_by_bits_) {
    row->begin = std::clamp<int64_t>(Saturated(position, -window.left), 0, keys_);
  }
  if (window.right >= 0 && !window_by_bits_) {
    row->end = std::clamp<int64_t>(Saturated(Saturated(position, window.right), 1), 0, keys_);
  }
  row->sinks = sinks_;
  row->key_end = keys_;
  if (pass_.masks.valid_keys >= 0) row->key_end = std::min(row->key_end, pass_.masks.valid_keys);
  if (spec_.attention.causal) {
    row->key_end = std::clamp<int64_t>(pass_.masks.causal_offset + query + 1, 0, row->key_end);
  }
  if (IsPaddingQuery(pass_.masks, query)) row->key_end = 0;
  row->query_position = position;
  row->alibi_slope = slopes_ != nullptr ? slopes_[head] : 0.0f;
}

uint64_t RowVisibility::WindowBits(int64_t query, int64_t first_key, int64_t count) const {
  const Window& window = spec_.attention.window;
  const int64_t position = QueryPosition(query);
  const int64_t least =
      window.left >= 0 ? Saturated(position, -window.left) : std::numeric_limits<int64_t>::min();
  const int64_t most =
      window.right >= 0 ? Saturated(position, window.right) : std::numeric_limits<int64_t>::max();
  const int64_t* positions = pass_.cache->positions().data() + first_key;
  uint64_t bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool inside = positions[i] >= least && positions[i] <= most;
    bits |= uint64_t{inside || first_key + i < sinks_} << i;
  }
  return bits;
}

// Cached keys, and all keys for queries beyond the tree, are not its business.
uint64_t RowVisibility::TreeBits(int64_t query, int64_t first_key, int64_t count) const {
  const int64_t new_tokens = keys_ - pass_.past_tokens;
  const int64_t cached = std::clamp<int64_t>(pass_.past_tokens - first_key, 0, count);
  if (cached == count || query >= new_tokens) return LowestBits(count);
  const uint8_t* row =
      pass_.masks.tree_mask + query * new_tokens + first_key + cached - pass_.past_tokens;
  return LowestBits(cached) | (BitsOfBytes(row, count - cached) << cached);
}

const uint8_t* RowVisibility::MaskRow(int64_t head, int64_t query) const {
  const AttentionMaskView& mask = pass_.masks.attention_mask;
  return static_cast<const uint8_t*>(mask.data) +
         (head * mask.head_stride + query * mask.query_stride) *
             static_cast<int64_t>(ElementSize(mask.dtype));
}

uint64_t RowVisibility::MaskBits(int64_t head, int64_t query, int64_t first_key,
                                 int64_t count) const {
  const AttentionMaskView& mask = pass_.masks.attention_mask;
  const uint8_t* row = MaskRow(head, query);
  uint64_t bits = 0;
  if (needs_bias_) {
    float summands[kTokensPerBlock];
    const int64_t held = LoadSummands(mask, row, first_key, count, summands);
    for (int64_t i = 0; i < held; ++i) bits |= uint64_t{summands[i] > lowest_} << i;
    return bits;
  }
  if (mask.key_stride == 0) return row[0] != 0 ? LowestBits(count) : 0;
  count = std::clamp<int64_t>(mask.key_count - first_key, 0, count);
  if (mask.key_stride == 1) return BitsOfBytes(row + first_key, count);
  for (int64_t i = 0; i < count; ++i) {
    bits |= uint64_t{row[(first_key + i) * mask.key_stride] != 0} << i;
  }
  return bits;
}

void RowVisibility::FillBits(int64_t head, int64_t query, BlockRange range, uint64_t* bits) const {
  const SequenceMasks& masks = pass_.masks;
  for (int64_t block = range.first; block < range.first + range.count; ++block) {
    const int64_t key = block * kTokensPerBlock;
    const int64_t count = std::min(kTokensPerBlock, keys_ - key);
    uint64_t word = LowestBits(count);
    if (masks.key_mask != nullptr) word &= BitsOfBytes(masks.key_mask + key, count);
    if (window_by_bits_) word &= WindowBits(query, key, count);
    if (masks.tree_mask != nullptr) word &= TreeBits(query, key, count);
    if (masks.attention_mask.data != nullptr) word &= MaskBits(head, query, key, count);
    bits[block] = word;
  }
}

void RowVisibility::FillBias(int64_t head, int64_t query, BlockRange range, float* bias) const {
  const AttentionMaskView& mask = pass_.masks.attention_mask;
  const int64_t begin = range.first * kTokensPerBlock, count = range.count * kTokensPerBlock;
  float* const summands = bias + begin;
  const int64_t held =
      LoadSummands(mask, MaskRow(head, query), begin, std::min(count, keys_ - begin), summands);
  for (int64_t i = 0; i < held; ++i) summands[i] = summands[i] > lowest_ ? summands[i] : 0.0f;
  std::fill(summands + held, summands + count, 0.0f);
}

void RowVisibility::FillKeep(int64_t head, int64_t query, BlockRange range, uint64_t* keep) const {
  for (int64_t block = range.first; block < range.first + range.count; ++block) {
    keep[block] =
        KeptWeights(pass_.dropout, pass_.dropout_stream, head, query, block * kTokensPerBlock);
  }
}

}  // namespace attnserve
