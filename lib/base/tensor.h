// Views of dense tensors that somebody else owns.
#ifndef ATTNSERVE_LIB_BASE_TENSOR_H_
#define ATTNSERVE_LIB_BASE_TENSOR_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/element_type.h"

namespace attnserve {

// Sizes of the dimensions, outermost first. Every tensor is row-major without gaps.
using Shape = absl::InlinedVector<int64_t, 4>;

// Most dimensions a tensor has.
inline constexpr int kMaxRank = 8;

// "[2, 3, 4]".
std::string ShapeToString(absl::Span<const int64_t> shape);

// Product of the sizes. OutOfRange if a size is negative, the rank is above kMaxRank or the product
// of the positive sizes exceeds 2^62 (so that a zero elsewhere cannot hide an overflow).
absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> shape);

// Elements that are only read. The data may be misaligned. Copies share the data.
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  const void* data = nullptr;  // shape[0] x shape[1] x ... elements; null: no tensor

  bool present() const { return data != nullptr; }
  int rank() const { return static_cast<int>(shape.size()); }
  int64_t dim(int i) const { return shape[static_cast<size_t>(i)]; }
  int64_t elements() const;  // product of the sizes, known not to overflow
  size_t bytes() const { return static_cast<size_t>(elements()) * ElementSize(dtype); }

  // Element `index` (row-major) of a float tensor, as float.
  float At(int64_t index) const;
};

// Elements to be written. `data` may be null where there are none.
struct MutableTensorView {
  DType dtype = DType::kF32;
  void* data = nullptr;
};

// Vectors of heads, read in place: element (token, head, i) lies at token * token_stride +
// head * head_stride + i, in elements.
struct HeadsView {
  DType dtype = DType::kF32;
  const void* data = nullptr;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t size = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// Rows, read in place: [rows, width] without gaps.
struct RowsView {
  DType dtype = DType::kF32;
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
};

// Copies `count` elements from `source`, of any float type, as F32.
void LoadAsF32(DType type, const void* source, int64_t count, float* target);

// Copies `count` F32 elements to `target`, rounded to its type (to nearest, ties to even).
void StoreFromF32(const float* source, int64_t count, DType type, void* target);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_BASE_TENSOR_H_
