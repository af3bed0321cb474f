// Memory for caches, under one budget.
#ifndef ATTNSERVE_LIB_CACHE_KV_BLOCK_POOL_H_
#define ATTNSERVE_LIB_CACHE_KV_BLOCK_POOL_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/mutex.h"

namespace attnserve {

// Hands out blocks of any size from slabs, one slab list per size, and counts every byte promised
// against the budget. Bytes are first charged (which may fail), then used (which cannot fail):
// callers charge all that a step needs before they begin it. Thread-safe.
//
// A slab is the fewest blocks that fill 2 MiB (a huge page). One whose blocks are all free goes
// back to the system, but for the last one, kept so that a short-lived cache does not map and fault
// in a slab each time.
class KvBlockPool {
 public:
  explicit KvBlockPool(int64_t budget_bytes);
  ~KvBlockPool();
  KvBlockPool(const KvBlockPool&) = delete;
  KvBlockPool& operator=(const KvBlockPool&) = delete;

  // Charges `bytes` (>= 0) to the budget. KV_BUDGET if they are not free; then nothing is charged.
  // `held_bytes`, for the error: charged before for the same purpose, and kept.
  absl::Status Charge(int64_t bytes, int64_t held_bytes = 0);

  // Gives charged bytes back.
  void Refund(int64_t bytes);

  // A block of `block_bytes` (> 0), aligned to kKernelAlignment, contents undefined. The caller has
  // charged it; null only if the system has no memory.
  void* Allocate(int64_t block_bytes);

  // Frees a block of Allocate(block_bytes). Does not refund.
  void Free(void* block, int64_t block_bytes);

  struct Usage {
    int64_t budget_bytes = 0;
    int64_t charged_bytes = 0;    // blocks in use and other promises
    int64_t block_bytes = 0;      // of them, blocks in use
    int64_t slab_free_bytes = 0;  // held from the system, beyond the blocks in use
  };
  Usage usage() const;

 private:
  // A stretch of memory from the system, cut into blocks of one size.
  struct Slab {
    int64_t mapped_bytes = 0;
    int32_t block_count = 0;
    int32_t used = 0;            // blocks handed out
    int32_t untouched = 0;       // blocks from here on were never handed out
    std::vector<int32_t> freed;  // blocks that came back
  };
  struct SizeClass {
    std::map<uint8_t*, Slab> slabs;  // by address
    std::set<uint8_t*> open;         // those with a free block; the lowest is used first
  };

  uint8_t* AddSlab(int64_t stride) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveSlab(int64_t stride, uint8_t* memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepAsSpare(int64_t stride, uint8_t* memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  const int64_t budget_bytes_;
  int64_t charged_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t block_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t slab_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, SizeClass> classes_ ABSL_GUARDED_BY(mutex_);  // by distance between blocks
  uint8_t* spare_ ABSL_GUARDED_BY(mutex_) = nullptr;              // a slab without used blocks
  int64_t spare_stride_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_CACHE_KV_BLOCK_POOL_H_
