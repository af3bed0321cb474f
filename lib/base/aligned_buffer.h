// Memory for kernels.
#ifndef ATTNSERVE_LIB_BASE_ALIGNED_BUFFER_H_
#define ATTNSERVE_LIB_BASE_ALIGNED_BUFFER_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace attnserve {

// Alignment of kernel memory: one cache line, and the widest vector.
inline constexpr size_t kKernelAlignment = 64;

// A huge page of the system. Memory of such pages has its lines side by side in the second-level
// cache, where those of small pages meet by chance, and needs few entries of the page table's
// cache.
inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Memory that grows and never shrinks: reused between calls, it stops allocating once it has seen
// the largest call. Not thread-safe. Contents are lost on growth and are not initialised. From half
// a huge page on it lies in huge pages, where the system has them.
template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t count) { Reserve(count); }

  // At least `count` elements, aligned to kKernelAlignment. Throws std::bad_alloc.
  T* Reserve(size_t count) {
    if (count > capacity_) {
      constexpr size_t kHuge = static_cast<size_t>(kHugePageBytes);
      const bool large = count * sizeof(T) >= kHuge / 2;
      const size_t alignment = large ? kHuge : kKernelAlignment;
      const size_t bytes = (count * sizeof(T) + alignment - 1) / alignment * alignment;
      void* memory = std::aligned_alloc(alignment, bytes);
      if (memory == nullptr) throw std::bad_alloc();
      if (large) madvise(memory, bytes, MADV_HUGEPAGE);  // advice: failure changes nothing
      data_.reset(static_cast<T*>(memory));
      capacity_ = count;
    }
    return data_.get();
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t capacity() const { return capacity_; }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> data_;
  size_t capacity_ = 0;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_BASE_ALIGNED_BUFFER_H_
