// Float tensors in memory, as a caller of the library holds them.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_TYPED_ELEMENTS_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_TYPED_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/base/element_type.h"
#include "lib/base/tensor.h"

namespace attnserve {

// Elements of one float type in memory, one element past an aligned address: nothing may rely on
// the alignment of a caller's tensor.
class Elements {
 public:
  Elements() = default;
  Elements(DType dtype, const std::vector<double>& values) : Elements(dtype, values.size()) {
    for (size_t i = 0; i < values.size(); ++i) Store(i, values[i]);
  }
  Elements(DType dtype, size_t count)
      : dtype_(dtype), bytes_((count + 1) * ElementSize(dtype), 0xff) {}

  DType dtype() const { return dtype_; }
  void* data() { return bytes_.data() + ElementSize(dtype_); }
  const void* at(int64_t index) const {
    return bytes_.data() + (static_cast<size_t>(index) + 1) * ElementSize(dtype_);
  }
  double Load(size_t index) const {
    float value = 0.0f;
    LoadAsF32(dtype_, at(static_cast<int64_t>(index)), 1, &value);
    return static_cast<double>(value);
  }

 private:
  void Store(size_t index, double value) {
    const float narrow = static_cast<float>(value);
    StoreFromF32(&narrow, 1, dtype_, bytes_.data() + (index + 1) * ElementSize(dtype_));
  }

  DType dtype_ = DType::kF32;
  std::vector<uint8_t> bytes_;
};

// [tokens, heads, size] to [heads, tokens, size], or back with the counts swapped.
std::vector<double> SwapTokensAndHeads(const std::vector<double>& values, int64_t tokens,
                                       int64_t heads, int64_t size);

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_TYPED_ELEMENTS_H_
