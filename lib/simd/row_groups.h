// How rows are cut into groups that share the loads of what they are multiplied with.
#ifndef ATTNSERVE_LIB_SIMD_ROW_GROUPS_H_
#define ATTNSERVE_LIB_SIMD_ROW_GROUPS_H_

#include <algorithm>
#include <cstdint>

namespace attnserve::simd {

// Groups of at most `most` rows, as even as possible, the larger ones first.
class RowGroups {
 public:
  constexpr RowGroups(int64_t rows, int64_t most)
      : count_((rows + most - 1) / most),
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
