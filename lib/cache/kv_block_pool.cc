#include "lib/cache/kv_block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "lib/base/aligned_buffer.h"
#include "lib/base/errors.h"

#if defined(__SANITIZE_ADDRESS__)
#define ATTNSERVE_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATTNSERVE_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef ATTNSERVE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) static_cast<void>(0)
#endif

namespace attnserve {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kMaxSpareBytes = 2 * kHugePageBytes;
constexpr int64_t kMaxBlockBytes = int64_t{1} << 46;  // beyond any address space; no overflow below

constexpr int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Distance between blocks of `block_bytes` in a slab.
constexpr int64_t Stride(int64_t block_bytes) {
  return RoundUp(block_bytes, static_cast<int64_t>(kKernelAlignment));
}

// `bytes` (a multiple of a page) aligned to a huge page, or null.
uint8_t* Map(int64_t bytes) {
  const size_t padded = static_cast<size_t>(bytes + kHugePageBytes);
  void* mapped = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  uint8_t* const begin = static_cast<uint8_t*>(mapped);
  const int64_t before =
      RoundUp(static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin)), kHugePageBytes) -
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin));
  uint8_t* const memory = begin + before;
  if (before > 0) munmap(begin, static_cast<size_t>(before));
  munmap(memory + bytes, static_cast<size_t>(kHugePageBytes - before));
  madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice: failure changes nothing
  return memory;
}

}  // namespace

KvBlockPool::KvBlockPool(int64_t budget_bytes) : budget_bytes_(budget_bytes) {}

KvBlockPool::~KvBlockPool() {
  MutexLock lock(mutex_);
  while (!classes_.empty()) {
    const auto size_class = classes_.begin();
    RemoveSlab(size_class->first, size_class->second.slabs.begin()->first);
  }
}

absl::Status KvBlockPool::Charge(int64_t bytes, int64_t held_bytes) {
  MutexLock lock(mutex_);
  const int64_t free_bytes = budget_bytes_ - charged_bytes_;
  if (bytes > free_bytes) return KvBudgetExceeded(bytes, held_bytes, free_bytes, budget_bytes_);
  charged_bytes_ += bytes;
  return absl::OkStatus();
}

void KvBlockPool::Refund(int64_t bytes) {
  MutexLock lock(mutex_);
  charged_bytes_ -= bytes;
}

void* KvBlockPool::Allocate(int64_t block_bytes) {
  if (block_bytes <= 0 || block_bytes > kMaxBlockBytes) return nullptr;
  const int64_t stride = Stride(block_bytes);
  MutexLock lock(mutex_);
  const auto found = classes_.find(stride);
  uint8_t* memory = found == classes_.end() || found->second.open.empty()
                        ? AddSlab(stride)
                        : *found->second.open.begin();
  if (memory == nullptr) return nullptr;
  if (memory == spare_) spare_ = nullptr;
  SizeClass& size_class = classes_[stride];
  Slab& slab = size_class.slabs[memory];
  int32_t index = slab.untouched;
  if (slab.freed.empty()) {
    ++slab.untouched;
  } else {
    index = slab.freed.back();
    slab.freed.pop_back();
  }
  if (++slab.used == slab.block_count) size_class.open.erase(memory);
  block_bytes_ += block_bytes;
  uint8_t* const block = memory + index * stride;
  ASAN_UNPOISON_MEMORY_REGION(block, static_cast<size_t>(block_bytes));
  return block;
}

void KvBlockPool::Free(void* block, int64_t block_bytes) {
  const int64_t stride = Stride(block_bytes);
  uint8_t* const address = static_cast<uint8_t*>(block);
  MutexLock lock(mutex_);
  SizeClass& size_class = classes_[stride];
  const auto entry = std::prev(size_class.slabs.upper_bound(address));
  uint8_t* const memory = entry->first;
  Slab& slab = entry->second;
  ASAN_POISON_MEMORY_REGION(address, static_cast<size_t>(stride));
  slab.freed.push_back(static_cast<int32_t>((address - memory) / stride));
  if (slab.used-- == slab.block_count) size_class.open.insert(memory);
  block_bytes_ -= block_bytes;
  if (slab.used == 0) KeepAsSpare(stride, memory);
}

KvBlockPool::Usage KvBlockPool::usage() const {
  MutexLock lock(mutex_);
  Usage usage;
  usage.budget_bytes = budget_bytes_;
  usage.charged_bytes = charged_bytes_;
  usage.block_bytes = block_bytes_;
  usage.slab_free_bytes = slab_bytes_ - block_bytes_;
  return usage;
}

uint8_t* KvBlockPool::AddSlab(int64_t stride) {
  const int64_t block_count = (kHugePageBytes + stride - 1) / stride;
  const int64_t bytes = RoundUp(block_count * stride, kPageBytes);
  uint8_t* const memory = Map(bytes);
  if (memory == nullptr) return nullptr;
  ASAN_POISON_MEMORY_REGION(memory, static_cast<size_t>(bytes));
  SizeClass& size_class = classes_[stride];
  Slab& slab = size_class.slabs[memory];
  slab.mapped_bytes = bytes;
  slab.block_count = static_cast<int32_t>(block_count);
  slab.freed.reserve(static_cast<size_t>(block_count));
  size_class.open.insert(memory);
  slab_bytes_ += bytes;
  return memory;
}

void KvBlockPool::RemoveSlab(int64_t stride, uint8_t* memory) {
  const auto size_class = classes_.find(stride);
  const auto slab = size_class->second.slabs.find(memory);
  const int64_t bytes = slab->second.mapped_bytes;
  size_class->second.open.erase(memory);
  size_class->second.slabs.erase(slab);
  if (size_class->second.slabs.empty()) classes_.erase(size_class);
  slab_bytes_ -= bytes;
  ASAN_UNPOISON_MEMORY_REGION(memory, static_cast<size_t>(bytes));
  munmap(memory, static_cast<size_t>(bytes));
}

void KvBlockPool::KeepAsSpare(int64_t stride, uint8_t* memory) {
  if (classes_[stride].slabs[memory].mapped_bytes > kMaxSpareBytes) {
    RemoveSlab(stride, memory);
    return;
  }
  if (spare_ != nullptr) RemoveSlab(spare_stride_, spare_);
  spare_ = memory;
  spare_stride_ = stride;
}

}  // namespace attnserve
