#include "lib/session/session.h"

#include <algorithm>
#include <utility>

#include "lib/base/status_macros.h"

namespace attnserve {
namespace {

bool IsCross(const AttentionLayer& layer) {
  return layer.spec().kind == LayerKind::kCrossAttention;
}

}  // namespace

int64_t SessionInfo::min_length() const {
  int64_t least = layers.empty() ? 0 : layers.front().length;
  for (const SessionLayerInfo& layer : layers) least = std::min(least, layer.length);
  return least;
}

Session::Session(SessionOptions options, int64_t generation, KvBlockPool* pool)
    : options_(std::move(options)),
      generation_(generation),
      create_time_(std::chrono::system_clock::now()),
      pool_(*pool),
      whole_replies_(pool) {
  layers_.resize(options_.layers.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    layer.layer = options_.layers[i];
    KvLayout layout = layer.layer->kv_layout();
    if (options_.override_cache_dtype) layout.dtype = options_.cache_dtype;
    layer.cache = std::make_unique<KvSequence>(layout, pool);
    layer.replies = std::make_unique<ReplyCache>(pool);
  }
}

absl::StatusOr<std::unique_ptr<Session>> Session::Create(SessionOptions options, int64_t generation,
                                                         KvBlockPool* pool) {
  std::unique_ptr<Session> session(new Session(std::move(options), generation, pool));
  const int64_t tokens = session->reserved_tokens();
  ATTNSERVE_RETURN_IF_ERROR(session->Reserve(
      0, session->layers_.size(),
      [tokens](const Layer& layer) { return IsCross(*layer.layer) ? 0 : tokens; }));
  return session;
}

absl::Status Session::Reserve(size_t begin, size_t end,
                              absl::FunctionRef<int64_t(const Layer& layer)> tokens) {
  int64_t needed = 0;
  for (size_t i = begin; i < end; ++i) {
    const int64_t bytes = layers_[i].cache->BytesToReserve(tokens(layers_[i]));
    needed = bytes > INT64_MAX - needed ? INT64_MAX : needed + bytes;
  }
  if (needed == 0) return absl::OkStatus();
  int64_t held = 0;
  for (const Layer& layer : layers_) held += layer.cache->bytes();
  ATTNSERVE_RETURN_IF_ERROR(pool_.Charge(needed, held));
  for (size_t i = begin; i < end; ++i) {
    KvSequence& cache = *layers_[i].cache;
    const int64_t before = cache.bytes();
    absl::Status status = cache.ReserveCharged(tokens(layers_[i]));
    needed -= cache.bytes() - before;
    if (!status.ok()) {
      pool_.Refund(needed);
      return status;
    }
  }
  return absl::OkStatus();
}

int64_t Session::CommonLength() const {
  const int64_t length = layers_.front().length;
  const bool same = std::all_of(layers_.begin(), layers_.end(),
                                [length](const Layer& layer) { return layer.length == length; });
  return same ? length : -1;
}

void Session::Truncate(int64_t length) {
  whole_replies_.Forget(length);
  for (Layer& layer : layers_) {
    layer.replies->Forget(length);
    if (layer.length <= length) continue;
    layer.length = length;
    if (!IsCross(*layer.layer)) layer.cache->Truncate(length, reserved_tokens());
  }
}

void Session::Reset(size_t index) {
  Layer& layer = layers_[index];
  layer.length = 0;
  layer.has_context = false;
  layer.cache->Truncate(0, IsCross(*layer.layer) ? 0 : reserved_tokens());
  layer.replies->Forget(-1);
  whole_replies_.Forget(-1);
}

SessionInfo Session::Info() const {
  SessionInfo info;
  info.id = options_.id;
  info.generation = generation_;
  info.model = options_.model_name;
  info.layers.resize(layers_.size());
  info.max_tokens = options_.max_tokens;
  const DType first = layers_.front().cache->layout().dtype;
  const auto is_first = [first](const Layer& layer) {
    return layer.cache->layout().dtype == first;
  };
  if (std::all_of(layers_.begin(), layers_.end(), is_first)) info.cache_dtype = first;
  info.create_time = create_time_;
  info.ttl = options_.ttl;
  UpdateInfo(&info);
  return info;
}

void Session::UpdateInfo(SessionInfo* info) const {
  info->owned_bytes = whole_replies_.bytes();
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    SessionLayerInfo& out = info->layers[i];
    out.length = layer.length;
    if (IsCross(*layer.layer)) {
      out.context_length = layer.cache->length();
      out.context_bytes = layer.cache->bytes();
    } else {
      out.kv_bytes = layer.cache->bytes();
    }
    info->owned_bytes += layer.cache->bytes() + layer.replies->bytes();
  }
}

int64_t Session::BytesPerBlock() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    if (!IsCross(*layer.layer)) bytes += layer.cache->layout().block_bytes();
  }
  return bytes;
}

int64_t Session::BytesPerToken() const { return BytesPerBlock() / kTokensPerBlock; }

}  // namespace attnserve
