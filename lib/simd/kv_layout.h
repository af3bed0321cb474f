// How cached keys and values lie in memory.
//
// A block holds kTokensPerBlock tokens of one layer of one session. For each of the G key/value
// heads, one after the other:
//   keys    [kTokensPerBlock / 16][d_k][16]    strips of 16 tokens: element (token, i) of a strip
//   at
//                                              i * 16 + token % 16
//   values  [padded d_v / 16][kTokensPerBlock][16]  panels of 16 elements: element (token, i) of
//                                              panel i / 16 at token * 16 + i % 16; elements from
//                                              d_v on are 0
// In an I8 cache a vector x of one token and head is a scale, max |x| / 127 as F32, and x / scale
// rounded to nearest even, in [-127, 127]; all 0 where the scale is. Where an element of x is not
// finite the scale is NaN. The scales, [kTokensPerBlock], follow the keys, and those of the values
// the values.
// Scores are then sums over broadcast q and whole vectors of keys, and the streams are sequential.
#ifndef ATTNSERVE_LIB_SIMD_KV_LAYOUT_H_
#define ATTNSERVE_LIB_SIMD_KV_LAYOUT_H_

#include <cstdint>

#include "lib/base/element_type.h"

namespace attnserve {

inline constexpr int64_t kTokensPerBlock = 64;
inline constexpr int64_t kStripWidth = 16;

// Sizes of one layer's cache.
struct KvLayout {
  int64_t kv_heads = 0;         // G
  int64_t key_head_size = 0;    // d_k
  int64_t value_head_size = 0;  // d_v
  DType dtype = DType::kF32;    // IsCacheType

  int64_t padded_value_size() const {
    return (value_head_size + kStripWidth - 1) / kStripWidth * kStripWidth;
  }
  // Bytes of the keys, of the values, and of both, of one head in one block.
  int64_t key_bytes() const { return VectorBytes(key_head_size); }
  int64_t value_bytes() const { return VectorBytes(padded_value_size()); }
  int64_t head_bytes() const { return key_bytes() + value_bytes(); }
  int64_t block_bytes() const { return kv_heads * head_bytes(); }

 private:
  // Of one head's vectors of `size` elements, one for each token of a block.
  int64_t VectorBytes(int64_t size) const {
    const int64_t scale = dtype == DType::kI8 ? static_cast<int64_t>(sizeof(float)) : 0;
    return kTokensPerBlock * (size * static_cast<int64_t>(ElementSize(dtype)) + scale);
  }
};

constexpr int64_t BlocksForTokens(int64_t tokens) {
  return tokens / kTokensPerBlock + (tokens % kTokensPerBlock != 0 ? 1 : 0);  // cannot overflow
}

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_SIMD_KV_LAYOUT_H_
