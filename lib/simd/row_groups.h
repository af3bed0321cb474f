// How rows of a product are cut into groups.
#ifndef ATTNSERVE_LIB_SIMD_ROW_GROUPS_H_
#define ATTNSERVE_LIB_SIMD_ROW_GROUPS_H_

#include <algorithm>
#include <cstdint>

#include "lib/simd/panel_product.h"

namespace attnserve::simd {

// Groups of at most kRowGroup rows, as even as possible, the larger ones first.
class RowGroups {
 public:
  explicit constexpr RowGroups(int64_t rows)
      : count_((rows + kRowGroup - 1) / kRowGroup),
        size_(count_ == 0 ? 0 : rows / count_),
        larger_(count_ == 0 ? 0 : rows % count_) {}

  constexpr int64_t count() const { return count_; }
  constexpr int64_t size(int64_t group) const { return size_ + (group < larger_ ? 1 : 0); }
  constexpr int64_t begin(int64_t group) const { return group * size_ + std::min(group, larger_); }

 private:
  int64_t count_;
  int64_t size_;
  int64_t larger_;
};

}  // namespace attnserve::simd

#endif  // ATTNSERVE_LIB_SIMD_ROW_GROUPS_H_
