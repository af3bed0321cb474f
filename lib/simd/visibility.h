// Which keys of a block a row sees.
#ifndef ATTNSERVE_LIB_SIMD_VISIBILITY_H_
#define ATTNSERVE_LIB_SIMD_VISIBILITY_H_

#include <algorithm>
#include <cstdint>

#include "lib/simd/attention.h"

namespace attnserve::simd {

// Bits [0, count) of a word; count may be negative or above 64.
constexpr uint64_t BitsBelow(int64_t count) {
  if (count <= 0) return 0;
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// Bit i = whether the row sees key block * 64 + i.
inline uint64_t VisibleKeys(const AttentionRow& row, int64_t block) {
  const int64_t base = block * kTokensPerBlock;
  if (row.begin <= base && base + kTokensPerBlock <= std::min(row.end, row.key_end)) {
    return row.mask == nullptr ? ~uint64_t{0} : row.mask[block];
  }
  const uint64_t range =
      BitsBelow(row.end - base) & ~BitsBelow(std::max<int64_t>(row.begin, 0) - base);
  const uint64_t keys = (range | BitsBelow(row.sinks - base)) & BitsBelow(row.key_end - base);
  return row.mask == nullptr || keys == 0 ? keys : keys & row.mask[block];
}

struct BlockSpan {
  int64_t begin = 0;
  int64_t end = 0;  // none if it is not above `begin`
  bool has(int64_t block) const { return begin <= block && block < end; }
};

// Blocks in whose scores nothing is masked, capped or added to for any of `rows`, and whose weights
// are all kept; or fewer.
inline BlockSpan PlainBlocks(const AttentionParams& params, absl::Span<const AttentionRow> rows) {
  if (params.softcap > 0.0f) return {};
  int64_t begin = 0, end = INT64_MAX;
  for (const AttentionRow& row : rows) {
    if (row.mask != nullptr || row.bias != nullptr || row.keep != nullptr) return {};
    if (row.alibi_slope != 0.0f) return {};
    begin = std::max(begin, row.begin);
    end = std::min({end, row.end, row.key_end});
  }
  return {BlocksForTokens(begin), end / kTokensPerBlock};
}

}  // namespace attnserve::simd

#endif  // ATTNSERVE_LIB_SIMD_VISIBILITY_H_
