#include <algorithm>

#include "lib/simd/attention.h"
#include "lib/simd/attention_layout.h"
#include "lib/simd/row_groups.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/simd/query_packing.cc"
#include "lib/simd/targets.h"
// clang-format off: Highway wants this order
#include "hwy/foreach_target.h"
#include "lib/simd/lanes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace attnserve {
namespace simd {
namespace HWY_NAMESPACE {

// packed [d_k - begin][rows] = elements [begin, d_k) of the queries of a group.
HWY_INLINE void PackElements(absl::Span<const AttentionRow> rows, size_t begin, size_t d_k,
                             float* HWY_RESTRICT packed) {
  for (size_t i = begin; i < d_k; ++i, packed += rows.size()) {
    for (size_t r = 0; r < rows.size(); ++r) packed[r] = rows[r].query[i];
  }
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void PackGroup(absl::Span<const AttentionRow> rows, size_t d_k, float* packed) {
  PackElements(rows, 0, d_k, packed);
}
#else
// Full groups four elements at a time: rows a to f become a0 b0 c0 d0 | e0 f0 a1 b1 | c1 d1 e1 f1
// and so on.
HWY_INLINE void PackGroup(absl::Span<const AttentionRow> rows, size_t d_k,
                          float* HWY_RESTRICT packed) {
  static_assert(kAttentionRowGroup == 6, "three pairs of rows");
  if (rows.size() != 6) return PackElements(rows, 0, d_k, packed);
  const hn::Full128<float> d;
  size_t i = 0;
  for (; i + 4 <= d_k; i += 4) {
    for (const bool upper : {false, true}) {
      const auto pair = [&](size_t row) HWY_ATTR {
        const auto first = hn::LoadU(d, rows[row].query + i);
        const auto second = hn::LoadU(d, rows[row + 1].query + i);
        return upper ? hn::InterleaveUpper(d, first, second)
                     : hn::InterleaveLower(d, first, second);
      };
      const auto ab = pair(0), cd = pair(2), ef = pair(4);
      hn::StoreU(hn::ConcatLowerLower(d, cd, ab), d, packed);
      hn::StoreU(hn::ConcatUpperLower(d, ab, ef), d, packed + 4);
      hn::StoreU(hn::ConcatUpperUpper(d, ef, cd), d, packed + 8);
      packed += 12;
    }
  }
  PackElements(rows, i, d_k, packed);
}
#endif

void PackQueries(const AttentionParams& params, absl::Span<const AttentionRow> rows,
                 float* packed) {
  constexpr size_t kRowsAhead = 2 * static_cast<size_t>(kAttentionRowGroup);
  constexpr size_t kLineFloats = 16;
  const size_t d_k = static_cast<size_t>(params.key_head_size);
  const RowGroups groups(static_cast<int64_t>(rows.size()), kAttentionRowGroup);
  for (int64_t g = 0; g < groups.count(); ++g) {
    const size_t begin = static_cast<size_t>(groups.begin(g));
    const size_t size = static_cast<size_t>(groups.size(g));
    const size_t ahead_end = std::min(begin + kRowsAhead + size, rows.size());
    for (size_t row = begin + kRowsAhead; row < ahead_end; ++row) {
      for (size_t i = 0; i < d_k; i += kLineFloats) hwy::Prefetch(rows[row].query + i);
    }
    PackGroup(rows.subspan(begin, size), d_k, packed + begin * d_k);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace simd
}  // namespace attnserve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnserve::simd {

HWY_EXPORT(PackQueries);

void PackQueries(const AttentionParams& params, absl::Span<const AttentionRow> rows,
                 float* packed) {
  HWY_DYNAMIC_DISPATCH(PackQueries)(params, rows, packed);
}

}  // namespace attnserve::simd
#endif  // HWY_ONCE
