// Memory for caches, under one budget.
#ifndef ATTNSERVE_LIB_CACHE_KV_BLOCK_POOL_H_
#define ATTNSERVE_LIB_CACHE_KV_BLOCK_POOL_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/mutex.h"

namespace attnserve {

// Hands out blocks of any size from slabs, one slab list per size, and counts every byte promised
// against the budget. Bytes are first charged (which may fail), then used (which cannot fail):
// callers charge all that a step needs before they begin it. A slab whose blocks are all free goes
// back to the system. Thread-safe.
class KvBlockPool {
 public:
  explicit KvBlockPool(int64_t budget_bytes);
  ~KvBlockPool();
  KvBlockPool(const KvBlockPool&) = delete;
  KvBlockPool& operator=(const KvBlockPool&) = delete;

  // Charges `bytes` (>= 0) to the budget. KV_BUDGET if they are not free; then nothing is charged.
  absl::Status Charge(int64_t bytes);

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
    int64_t blocks = 0;           // blocks in use
  };
  Usage usage() const;

 private:
  struct Slab;
  struct SizeClass {
    std::vector<std::unique_ptr<Slab>> slabs;
  };

  mutable Mutex mutex_;
  const int64_t budget_bytes_;
  int64_t charged_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t block_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t slab_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t blocks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<int64_t, SizeClass> classes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_CACHE_KV_BLOCK_POOL_H_
