// Products with weights stored in panels.
//
// y [rows, N] = x [rows, K] W [K, N]. W lies in panels of 16 columns, [padded N / 16][K][16],
// columns beyond N are 0. 16-bit weights are converted to F32 in registers; inside a panel row of
// 16 their pairs are interleaved, column c in the low and column c + 8 in the high half of 32-bit
// word c.
//
// Order of operations: K is cut into blocks (see ReductionBlock); inside a block one FMA per k,
// ascending, from 0; block sums are added in ascending order. The same bits for every row count.
#ifndef ATTNSERVE_LIB_SIMD_PANEL_PRODUCT_H_
#define ATTNSERVE_LIB_SIMD_PANEL_PRODUCT_H_

#include <cstddef>
#include <cstdint>

#include "lib/base/element_type.h"

namespace attnserve::simd {

inline constexpr int64_t kPanelWidth = 16;

// Size of the reduction block that starts with `remaining` of K left: 256 while at least 512
// remain; a rest above 256 is cut in two, the first part ceil(rest / 2); else the whole rest.
constexpr int64_t ReductionBlock(int64_t remaining) {
  if (remaining >= 512) return 256;
  return remaining > 256 ? (remaining + 1) / 2 : remaining;
}

constexpr int64_t PanelCount(int64_t columns) { return (columns + kPanelWidth - 1) / kPanelWidth; }

// Rows are handled in groups of at most this many (registers: 6 x 16 accumulators on AVX2).
inline constexpr int64_t kRowGroup = 6;

// Floats of packed x for `rows` rows.
constexpr size_t PackedRowsFloats(int64_t rows, int64_t k) {
  return static_cast<size_t>(rows) * static_cast<size_t>(k);
}

// Packs x [rows, K] (row stride in elements) for PanelProduct: per reduction block, per row group,
// [k][rows of the group]. Row groups are as even as possible.
void PackRows(const float* x, int64_t row_stride, int64_t rows, int64_t k, float* packed);

// y[r * y_stride + c] for columns [panel_begin * 16, panel_end * 16) (all 16 columns of a panel are
// written). `panels` is the whole matrix, of type F32, BF16 or F16, 64-byte aligned. k >= 1.
void PanelProduct(const float* packed, int64_t rows, int64_t k, DType weight_type,
                  const void* panels, int64_t panel_begin, int64_t panel_end, float* y,
                  int64_t y_stride);

// Copies column `column` of W to its place in the panels: weights[k * stride], of type
// `source_type`, for k in [0, K), rounded to `weight_type`.
void PackColumn(DType source_type, const void* weights, int64_t stride, int64_t k, int64_t column,
                DType weight_type, void* panels);

// Converts panels [panel_begin, panel_end) of 16-bit weights to F32 panels at `target`.
void WidenPanels(DType weight_type, const void* panels, int64_t k, int64_t panel_begin,
                 int64_t panel_end, float* target);

}  // namespace attnserve::simd

#endif  // ATTNSERVE_LIB_SIMD_PANEL_PRODUCT_H_
