// Replies kept so that a step sent twice is applied once.
#ifndef ATTNSERVE_LIB_SESSION_REPLY_CACHE_H_
#define ATTNSERVE_LIB_SESSION_REPLY_CACHE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/tensor.h"
#include "lib/cache/kv_block_pool.h"

namespace attnserve {

// One tensor of a kept reply, in the order the step produced them.
struct ReplyPart {
  int kind = 0;   // the caller's meaning
  int layer = 0;  // the caller's meaning
  DType dtype = DType::kF32;
  Shape shape;
  std::string bytes;
};

struct KeptReply {
  std::string request_id;
  uint64_t payload_hash = 0;
  int64_t position = 0;  // tokens before the step
  int64_t length = 0;    // tokens after it
  std::vector<ReplyPart> parts;
  int64_t charged_bytes = 0;
};

// The last kReplies replies of one layer of one session, at most kBytes of them, charged to the
// pool. Ids of older steps are remembered for a while longer, without their replies. Not
// thread-safe.
class ReplyCache {
 public:
  static constexpr size_t kReplies = 32;
  static constexpr int64_t kBytes = int64_t{1} << 20;
  static constexpr size_t kForgottenIds = 256;

  explicit ReplyCache(KvBlockPool* pool) : pool_(pool) {}
  ~ReplyCache() { Forget(-1); }
  ReplyCache(const ReplyCache&) = delete;
  ReplyCache& operator=(const ReplyCache&) = delete;

  // The reply of `request_id`, or null. Valid until the next change.
  const KeptReply* Find(std::string_view request_id) const;

  // Whether `request_id` was applied and its reply is no longer kept.
  bool WasApplied(std::string_view request_id) const;

  // Bytes a reply of `payload_bytes` is charged with.
  static int64_t ChargeFor(int64_t payload_bytes) { return payload_bytes + kOverhead; }

  // Allocates what the bookkeeping needs; Remember cannot fail afterwards.
  void Prepare();

  // Drops the oldest replies, so that one charged `charged_bytes` fits the limits of this cache.
  // Returns a reply to fill: with the memory of a dropped one of about that size, if there was one,
  // so that steps of one size do not allocate.
  KeptReply MakeRoom(int64_t charged_bytes);

  // Keeps the latest reply. The caller has charged `charged_bytes`, at most kBytes, to the pool;
  // the cache refunds them later.
  void Add(std::string_view request_id, int64_t charged_bytes, KeptReply reply);

  // Remembers a step that was applied and whose reply is not kept.
  void Remember(std::string_view request_id, int64_t length);

  // Forgets every step that ended with more than `length` tokens.
  void Forget(int64_t length);

  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kOverhead = 256;  // id, shapes and bookkeeping

  struct ForgottenId {
    uint64_t hash = 0;
    int64_t length = 0;
  };
  KeptReply DropOldest();
  KeptReply& At(size_t age) { return replies_[(first_ + age) % kReplies]; }
  const KeptReply& At(size_t age) const { return replies_[(first_ + age) % kReplies]; }

  KvBlockPool* pool_;
  std::vector<KeptReply> replies_;  // ring, empty until the first Add
  size_t first_ = 0;
  size_t count_ = 0;
  int64_t bytes_ = 0;
  std::vector<ForgottenId> forgotten_;  // ring
  size_t next_forgotten_ = 0;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_SESSION_REPLY_CACHE_H_
