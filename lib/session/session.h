// One sequence: the cached keys and values of each of its layers.
#ifndef ATTNSERVE_LIB_SESSION_SESSION_H_
#define ATTNSERVE_LIB_SESSION_SESSION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/attention/attention_layer.h"
#include "lib/cache/kv_sequence.h"
#include "lib/session/reply_cache.h"

namespace attnserve {

// A layer of a session, for people who ask.
struct SessionLayerInfo {
  int64_t length = 0;
  int64_t kv_bytes = 0;
  int64_t context_length = 0;
  int64_t context_bytes = 0;
};

// A session as it stood after its last completed step.
struct SessionInfo {
  std::string id;
  int64_t generation = 0;
  std::string model;  // empty: core attention
  std::vector<SessionLayerInfo> layers;
  int64_t max_tokens = 0;            // 0: no limit
  std::optional<DType> cache_dtype;  // unset: layers differ
  int64_t owned_bytes = 0;
  std::chrono::system_clock::time_point create_time;
  std::chrono::milliseconds ttl{0};
  std::chrono::milliseconds expires_in{0};
  int64_t pending_count = 0;

  int64_t min_length() const;
};

struct SessionOptions {
  std::string id;
  std::string model_name;                     // empty: core attention
  std::vector<const AttentionLayer*> layers;  // at least one
  std::shared_ptr<const void> layer_owner;    // keeps the layers alive
  int64_t max_tokens = 0;                     // 0: no limit
  bool reserve = false;                       // needs max_tokens > 0
  std::chrono::milliseconds ttl{0};
  bool override_cache_dtype = false;  // else each layer's own
  DType cache_dtype = DType::kF32;
};

// The caches and kept replies of one session. Not thread-safe: one thread works on a session at a
// time (the scheduler's).
class Session {
 public:
  struct Layer {
    const AttentionLayer* layer = nullptr;
    std::unique_ptr<KvSequence> cache;  // self- and core attention; of cross-attention the context
    int64_t length = 0;                 // tokens of this layer; in cross-attention tokens decoded
    bool has_context = false;           // cross-attention: whether `cache` holds a context
    std::unique_ptr<ReplyCache> replies;
  };

  // KV_BUDGET if options.reserve asks for more than is free.
  static absl::StatusOr<std::unique_ptr<Session>> Create(SessionOptions options, int64_t generation,
                                                         KvBlockPool* pool);

  const std::string& id() const { return options_.id; }
  const SessionOptions& options() const { return options_; }
  int64_t generation() const { return generation_; }
  std::vector<Layer>& layers() { return layers_; }
  ReplyCache& whole_replies() { return whole_replies_; }  // of steps through all layers

  // Length that all layers have; -1 if they differ.
  int64_t CommonLength() const;

  // Makes room for tokens(layer) tokens in the cache of each layer of [begin, end). KV_BUDGET if
  // not all that is missing is free; then nothing is changed. (If the system refuses memory that
  // the budget has, layers before that one may have grown.)
  absl::Status Reserve(size_t begin, size_t end,
                       absl::FunctionRef<int64_t(const Layer& layer)> tokens);

  // Keeps at most `length` tokens of every layer, contexts too.
  void Truncate(int64_t length);

  // Drops tokens and context of one layer.
  void Reset(size_t layer);

  // Everything but the times and pending_count.
  SessionInfo Info() const;
  // The same for one layer, and the session's bytes, into an Info made before. Does not allocate.
  void UpdateInfo(SessionInfo* info) const;

  // Tokens per layer whose blocks are kept whatever is cut.
  int64_t reserved_tokens() const { return options_.reserve ? options_.max_tokens : 0; }

  // Cost of one token in a full block, all layers; of one block in each layer.
  int64_t BytesPerToken() const;
  int64_t BytesPerBlock() const;

 private:
  Session(SessionOptions options, int64_t generation, KvBlockPool* pool);

  SessionOptions options_;
  int64_t generation_;
  std::chrono::system_clock::time_point create_time_;
  KvBlockPool& pool_;
  std::vector<Layer> layers_;
  ReplyCache whole_replies_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_SESSION_SESSION_H_
