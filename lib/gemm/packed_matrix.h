// Weight matrices and their products. The only folder that includes oneDNN.
#ifndef ATTNSERVE_LIB_GEMM_PACKED_MATRIX_H_
#define ATTNSERVE_LIB_GEMM_PACKED_MATRIX_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/parallel.h"
#include "lib/base/tensor.h"

namespace attnserve {

// A weight as it lies in a file: element (in, out) at in * in_stride + out * out_stride.
struct WeightView {
  DType dtype = DType::kF32;
  const void* data = nullptr;
  int64_t in = 0;
  int64_t out = 0;
  int64_t in_stride = 0;
  int64_t out_stride = 0;
};

// Which code multiplies. From 96 rows on kOneDnn runs products on oneDNN, below on our panel
// kernel, which is the faster there; kNative always uses the panel kernel; kAuto uses oneDNN for
// products of many rows where it gives our kernel's bits and is clearly the faster, measured when
// the first matrix of its shape and type is loaded.
enum class GemmBackend { kOneDnn, kNative, kAuto };

// Memory a product works in; grows to the largest product seen. One per caller at a time.
class GemmWorkspace;
std::unique_ptr<GemmWorkspace, void (*)(GemmWorkspace*)> MakeGemmWorkspace();

// W [K, N] in panels (lib/simd/panel_product.h), stored once, with an optional bias [N]. Immutable
// after Create; Multiply may be called from many threads with different workspaces.
class PackedMatrix {
 public:
  // Copies and packs. `columns` (one or more matrices of equal `in` >= 1, each with `out` >= 1) are
  // joined side by side. F32 weights stay F32, BF16 and F16 stay as they are (mixed ones become
  // F32). `bias` is empty or has N elements. BAD_SHAPE or BAD_DTYPE if they are not as said;
  // INTERNAL KERNEL_FAILURE if oneDNN cannot make its primitives or memory runs out.
  static absl::StatusOr<std::unique_ptr<PackedMatrix>> Create(absl::Span<const WeightView> columns,
                                                              absl::Span<const float> bias,
                                                              GemmBackend backend);
  ~PackedMatrix();

  // y [rows, N] (row stride y_stride >= PaddedColumns()) = x [rows, K] (row stride x_stride) W +
  // bias, the bias added to the finished sum. Columns from N to PaddedColumns() of y are
  // overwritten, those beyond are not touched. A row's bits do not depend on the other rows, on
  // their number or on the runner; where OneDnnMatchesPanels() is false they do depend on
  // whether there are 96 rows. KERNEL_FAILURE if oneDNN reports an error or memory runs out; y is
  // then undefined.
  absl::Status Multiply(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
                        ParallelRunner& runner, GemmWorkspace& workspace) const;

  int64_t in() const;
  int64_t out() const;
  int64_t PaddedColumns() const;  // N rounded up to 16
  int64_t bytes() const;          // of panels and bias
  DType dtype() const;
  // What runs products of many rows, for people: "native" or oneDNN's name, for example "gemm:jit".
  std::string implementation() const;
  bool uses_onednn() const;

 private:
  struct Impl;
  explicit PackedMatrix(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Whether oneDNN gave rows the bits of our panel kernel, at every K of every matrix of this process
// that uses it. It does on AVX2.
bool OneDnnMatchesPanels();

// Which bits products have, for numerics ids: those of "native", or "onednn" if
// OneDnnMatchesPanels() is false.
std::string GemmNumerics();

// Version of the oneDNN library that is loaded, "2.6.3".
std::string OneDnnVersion();

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_GEMM_PACKED_MATRIX_H_
