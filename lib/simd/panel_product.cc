#include "lib/simd/panel_product.h"

#include <algorithm>
#include <type_traits>

#include "lib/simd/row_groups.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/simd/panel_product.cc"
#include "lib/simd/targets.h"
// clang-format off: Highway wants this order
#include "hwy/foreach_target.h"
#include "lib/simd/panel_kernels-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace attnserve {
namespace simd {
namespace HWY_NAMESPACE {

// Groups [group_begin, group_end) of the packed rows and where their results go.
struct RowSlice {
  const float* packed;
  int64_t rows;  // of all groups
  RowGroups groups;
  int64_t group_begin;
  int64_t group_end;
  float* y;
  int64_t y_stride;
};

// Part [begin, begin + depth) of the reduction.
struct DepthRange {
  int64_t begin;
  int64_t depth;
};

template <class W>
using TileFunction = void (*)(const float* packed, const W* weights, size_t depth, bool first,
                              float* y, size_t y_stride, Prefetcher prefetcher);

template <class W>
TileFunction<W> TileFunctionFor(int64_t rows) {
  static constexpr TileFunction<W> kFunctions[kRowGroup] = {MultiplyTile<1, W>, MultiplyTile<2, W>,
                                                            MultiplyTile<3, W>, MultiplyTile<4, W>,
                                                            MultiplyTile<5, W>, MultiplyTile<6, W>};
  return kFunctions[rows - 1];
}

// y (+)= x W for one reduction block of one panel and all groups of the slice, which together fetch
// `next`, rows of `next_row_bytes`, into the cache.
template <class W>
HWY_INLINE void MultiplyGroups(const RowSlice& slice, DepthRange range, const W* weights,
                               int64_t column, const void* next, size_t next_row_bytes) {
  const size_t depth = static_cast<size_t>(range.depth);
  const size_t parts = static_cast<size_t>(slice.group_end - slice.group_begin);
  const RowGroups& groups = slice.groups;
  const float* packed = slice.packed + range.begin * slice.rows;
  for (int64_t g = slice.group_begin; g < slice.group_end; ++g) {
    const int64_t row = groups.begin(g);
    const size_t part = static_cast<size_t>(g - slice.group_begin);
    TileFunctionFor<W>(groups.size(g))(packed + row * range.depth, weights, depth, range.begin == 0,
                                       slice.y + row * slice.y_stride + column,
                                       static_cast<size_t>(slice.y_stride),
                                       Prefetcher::Part(next, next_row_bytes, depth, part, parts));
  }
}

// The same, with F16 weights converted once where several groups use them. BF16 takes a shift and a
// mask, which run beside the products at no cost.
template <class W>
HWY_INLINE void MultiplyBlock(const RowSlice& slice, DepthRange range, const W* weights,
                              int64_t column, const W* next) {
  constexpr size_t kRowBytes = kPanelWidth * sizeof(W);
  if constexpr (std::is_same_v<W, F16>) {
    if (slice.group_end - slice.group_begin > 1) {
      HWY_ALIGN float wide[kMaxDepth * kPanelWidth];
      WidenRows(weights, static_cast<size_t>(range.depth), wide);
      return MultiplyGroups(slice, range, wide, column, next, kRowBytes);
    }
  }
  MultiplyGroups(slice, range, weights, column, next, kRowBytes);
}

// Few rows: their packed form stays in the cache, the weights pass by once, in order.
template <class W>
void MultiplyPanelsOutermost(const RowSlice& slice, int64_t k, const W* panels, int64_t panel_begin,
                             int64_t panel_end) {
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    for (DepthRange range = {0, ReductionBlock(k)}; range.depth > 0;) {
      const W* weights = panels + (panel * k + range.begin) * kPanelWidth;
      MultiplyBlock(slice, range, weights, panel * kPanelWidth,
                    weights + range.depth * kPanelWidth);
      range.begin += range.depth;
      range.depth = ReductionBlock(k - range.begin);
    }
  }
}

// Many rows: one reduction block of them stays in the cache.
template <class W>
void MultiplyDepthOutermost(const RowSlice& slice, int64_t k, const W* panels, int64_t panel_begin,
                            int64_t panel_end) {
  for (DepthRange range = {0, ReductionBlock(k)}; range.depth > 0;) {
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      const W* weights = panels + (panel * k + range.begin) * kPanelWidth;
      MultiplyBlock(slice, range, weights, panel * kPanelWidth, weights + k * kPanelWidth);
    }
    range.begin += range.depth;
    range.depth = ReductionBlock(k - range.begin);
  }
}

template <class W>
void MultiplyPanels(RowSlice slice, int64_t k, const void* panels, int64_t panel_begin,
                    int64_t panel_end) {
  const W* weights = static_cast<const W*>(panels);
  if (slice.rows * k * static_cast<int64_t>(sizeof(float)) <= kCachedRowBytes) {
    return MultiplyPanelsOutermost(slice, k, weights, panel_begin, panel_end);
  }
  for (int64_t g = 0; g < slice.groups.count(); g += kGroupsPerChunk) {
    slice.group_begin = g;
    slice.group_end = std::min(slice.groups.count(), g + kGroupsPerChunk);
    MultiplyDepthOutermost(slice, k, weights, panel_begin, panel_end);
  }
}

void PanelProduct(const float* packed, int64_t rows, int64_t k, DType weight_type,
                  const void* panels, int64_t panel_begin, int64_t panel_end, float* y,
                  int64_t y_stride) {
  const RowGroups groups(rows, kRowGroup);
  const RowSlice slice = {packed, rows, groups, 0, groups.count(), y, y_stride};
  switch (weight_type) {
    case DType::kF16:
      return MultiplyPanels<F16>(slice, k, panels, panel_begin, panel_end);
    case DType::kBF16:
      return MultiplyPanels<BF16>(slice, k, panels, panel_begin, panel_end);
    default:
      return MultiplyPanels<float>(slice, k, panels, panel_begin, panel_end);
  }
}

void WidenPanels(DType weight_type, const void* panels, int64_t k, int64_t panel_begin,
                 int64_t panel_end, float* target) {
  const int64_t begin = panel_begin * k * kPanelWidth;
  const size_t rows = static_cast<size_t>((panel_end - panel_begin) * k);
  if (weight_type == DType::kF16) {
    WidenRows(static_cast<const F16*>(panels) + begin, rows, target);
  } else {
    WidenRows(static_cast<const BF16*>(panels) + begin, rows, target);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace simd
}  // namespace attnserve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnserve::simd {

HWY_EXPORT(PanelProduct);
HWY_EXPORT(WidenPanels);

void PanelProduct(const float* packed, int64_t rows, int64_t k, DType weight_type,
                  const void* panels, int64_t panel_begin, int64_t panel_end, float* y,
                  int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(PanelProduct)
  (packed, rows, k, weight_type, panels, panel_begin, panel_end, y, y_stride);
}

void WidenPanels(DType weight_type, const void* panels, int64_t k, int64_t panel_begin,
                 int64_t panel_end, float* target) {
  HWY_DYNAMIC_DISPATCH(WidenPanels)(weight_type, panels, k, panel_begin, panel_end, target);
}

}  // namespace attnserve::simd
#endif  // HWY_ONCE
