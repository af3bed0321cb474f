// The cached keys and values of one layer of one session.
#ifndef ATTNSERVE_LIB_CACHE_KV_SEQUENCE_H_
#define ATTNSERVE_LIB_CACHE_KV_SEQUENCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/base/tensor.h"
#include "lib/cache/kv_block_pool.h"
#include "lib/simd/kv_layout.h"

namespace attnserve {

// A list of blocks that grows along tokens. Not thread-safe; reading is safe from many threads
// while nobody changes it, and WriteTokens is safe from many threads for different heads.
//
// Life of a step: Reserve (may fail, changes nothing visible), Extend, WriteTokens for each new
// token, then either nothing more or Truncate back.
class KvSequence {
 public:
  // `pool` outlives the sequence. Holds no block yet.
  KvSequence(const KvLayout& layout, KvBlockPool* pool);
  ~KvSequence();
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;

  const KvLayout& layout() const { return layout_; }
  int64_t length() const { return length_; }  // tokens held
  int64_t capacity() const;                   // tokens the blocks can hold
  int64_t bytes() const;                      // of the blocks, all charged to the pool

  // Makes capacity() >= tokens. Charges and allocates the missing blocks, or fails with KV_BUDGET
  // and changes nothing.
  absl::Status Reserve(int64_t tokens);

  // Reserve in two parts, for several sequences at once: the charge it would need now, at most
  // 2^62; and the allocation alone, of what the caller has charged. If the system refuses the
  // memory, nothing is changed: it is still charged, and not used.
  int64_t BytesToReserve(int64_t tokens) const;
  absl::Status ReserveCharged(int64_t tokens);

  // Adds `count` tokens within the capacity, at positions[0..count) or, if null, at positions equal
  // to their indices. Their contents are undefined until WriteTokens.
  void Extend(int64_t count, const int64_t* positions);

  // Writes keys [tokens, G, d_k] and values [tokens, G, d_v] of heads [head_begin, head_end),
  // rounded to the cache's type, as tokens first, first + 1, ...
  void WriteTokens(int64_t first, const HeadsView& keys, const HeadsView& values,
                   int64_t head_begin, int64_t head_end);

  // Reads token `index` of head `head` back as F32: d_k and d_v elements. Either may be null.
  void ReadToken(int64_t index, int64_t head, float* key, float* value) const;

  // Keeps the first `length` (<= length()) tokens. Frees and refunds blocks that hold nothing more,
  // except those within keep_capacity tokens.
  void Truncate(int64_t length, int64_t keep_capacity = 0);

  int64_t block_count() const { return static_cast<int64_t>(blocks_.size()); }
  const void* keys(int64_t block, int64_t head) const;    // see KvLayout
  const void* values(int64_t block, int64_t head) const;  // see KvLayout

  // Whether every value of this head ever written to this block is finite (a truncated non-finite
  // value may leave it false).
  bool values_finite(int64_t block, int64_t head) const;

  // Position of each token if any differs from its index, else empty.
  absl::Span<const int64_t> positions() const { return positions_; }

 private:
  uint8_t* HeadBlock(int64_t block, int64_t head) const;

  KvLayout layout_;
  KvBlockPool* pool_;
  int64_t length_ = 0;
  std::vector<void*> blocks_;
  std::vector<uint8_t> nonfinite_;  // [blocks, G] 1 where a non-finite value was written
  std::vector<int64_t> positions_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_CACHE_KV_SEQUENCE_H_
