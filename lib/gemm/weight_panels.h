// A packed weight matrix as the products see it.
#ifndef ATTNSERVE_LIB_GEMM_WEIGHT_PANELS_H_
#define ATTNSERVE_LIB_GEMM_WEIGHT_PANELS_H_

#include <algorithm>
#include <cstdint>

#include "lib/base/element_type.h"
#include "lib/simd/panel_product.h"

namespace attnserve {

// W [K, N] in panels (lib/simd/panel_product.h), owned by somebody else.
struct WeightPanels {
  int64_t k = 0;
  int64_t panel_count = 0;  // N rounded up to 16, / 16
  DType dtype = DType::kF32;
  const void* panels = nullptr;  // [panel_count][K][16], aligned to kKernelAlignment
  const float* bias = nullptr;   // [panel_count * 16], 0 from N on; null: none

  // Of x W with so many rows.
  int64_t multiplications(int64_t rows) const { return rows * k * panel_count * simd::kPanelWidth; }
};

// x [rows, K], row stride in elements.
struct ProductInput {
  const float* x = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
};

// y [rows, panel_count * 16], row stride in elements.
struct ProductOutput {
  float* y = nullptr;
  int64_t stride = 0;
};

// Rows of one pass through the tasks: it bounds the workspace (768 rows of K = 4096 are 12 MiB) and
// is a multiple of every tile's height.
inline constexpr int64_t kRowsPerPass = 768;

// Part `index` of `parts` equal parts of [0, total).
struct TaskRange {
  TaskRange(int64_t index, int64_t parts, int64_t total)
      : begin(index * total / parts), end((index + 1) * total / parts) {}
  int64_t begin;
  int64_t end;
};

// Parts to cut `panel_count` panels into, where `tiles` row tiles are each cut this way: about
// eight tasks a worker, so that a worker that is held up delays the others little, and none of more
// multiplications than take a millisecond or two.
inline int64_t PanelParts(int64_t panel_count, int64_t tiles, int64_t multiplications,
                          int worker_count) {
  constexpr int64_t kTasksPerWorker = 8;
  constexpr int64_t kTaskMultiplications = int64_t{1} << 26;
  const int64_t tasks =
      std::max(worker_count * kTasksPerWorker, multiplications / kTaskMultiplications);
  return std::clamp<int64_t>((tasks + tiles - 1) / tiles, 1, panel_count);
}

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_GEMM_WEIGHT_PANELS_H_
