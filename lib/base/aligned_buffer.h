// Memory for kernels.
#ifndef ATTNSERVE_LIB_BASE_ALIGNED_BUFFER_H_
#define ATTNSERVE_LIB_BASE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace attnserve {

// Alignment of kernel memory: one cache line, and the widest vector.
inline constexpr size_t kKernelAlignment = 64;

// Memory that grows and never shrinks: reused between calls, it stops allocating once it has seen
// the largest call. Not thread-safe. Contents are lost on growth and are not initialised.
template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t count) { Reserve(count); }

  // At least `count` elements, aligned to kKernelAlignment. Throws std::bad_alloc.
  T* Reserve(size_t count) {
    if (count > capacity_) {
      const size_t bytes =
          (count * sizeof(T) + kKernelAlignment - 1) / kKernelAlignment * kKernelAlignment;
      void* memory = std::aligned_alloc(kKernelAlignment, bytes);
      if (memory == nullptr) throw std::bad_alloc();
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
