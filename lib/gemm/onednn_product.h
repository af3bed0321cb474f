// Products on oneDNN, in row tiles of fixed sizes, shared out to workers.
#ifndef ATTNSERVE_LIB_GEMM_ONEDNN_PRODUCT_H_
#define ATTNSERVE_LIB_GEMM_ONEDNN_PRODUCT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/parallel.h"
#include "lib/gemm/gemm_workspace.h"
#include "lib/gemm/onednn_matmul.h"
#include "lib/gemm/weight_panels.h"

namespace attnserve {

// Products with matrices of one K. Immutable; Multiply may be called from many threads with
// different workspaces.
class OneDnnProduct {
 public:
  // The one for K, made and compared with the panel kernel at the first call and kept as long as
  // the process lives. KERNEL_FAILURE if oneDNN cannot make its primitives.
  static absl::StatusOr<const OneDnnProduct*> Get(int64_t k);

  // y = x W + bias for weights of any type with this K. 16-bit weights become F32 panel by panel.
  absl::Status Multiply(const WeightPanels& weights, const ProductInput& input,
                        const ProductOutput& output, ParallelRunner& runner,
                        GemmWorkspace& workspace) const;

  // Whether every row of a comparison, at each row count of OneDnnMatmul, had the bits of the panel
  // kernel.
  bool matches_panels() const { return matches_panels_; }

  const std::string& implementation() const { return matmuls_.front()->implementation(); }

 private:
  OneDnnProduct() = default;

  void CutIntoTiles(int64_t rows, GemmWorkspace& workspace) const;
  absl::Status MultiplyPass(const WeightPanels& weights, const ProductInput& input,
                            const ProductOutput& output, ParallelRunner& runner,
                            GemmWorkspace& workspace) const;
  absl::Status CompareWithPanels();

  int64_t k_ = 0;
  std::array<const OneDnnMatmul*, 4> matmuls_{};  // by descending row count
  bool matches_panels_ = true;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_GEMM_ONEDNN_PRODUCT_H_
