#include "lib/engine/decode_work.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/engine/payload_hash.h"

namespace attnserve {

DecodeWork::DecodeWork(DecodeCall* call, std::shared_ptr<Session> session,
                       const WorkContext& context)
    : Work(call, Phase::kDecode, context), decode_(call), session_(std::move(session)) {
  if (decode_->error.ok()) {
    decode_->error = CheckDecodeCall(*decode_, *session_, *context_.limits);
  }
  if (!decode_->error.ok()) return;
  if (!decode_->request_id.empty()) payload_hash_ = PayloadHash(*decode_);
  ReadTokenCounts();
  if (queries_ != 1) phase_ = Phase::kPrefill;
}

void DecodeWork::ReadTokenCounts() {
  if (decode_->layer.has_value()) {
    first_layer_ = static_cast<size_t>(*decode_->layer);
  } else {
    layer_count_ = session_->layers().size();
  }
  if (IsCore(LayerAt(0))) {
    queries_ = decode_->q.dim(2);
    new_keys_ = decode_->k.dim(2);
  } else {
    queries_ = decode_->x.dim(1);
    new_keys_ = queries_;
  }
}

bool DecodeWork::is_light() {
  constexpr int64_t kLightMultiplications = 1 << 18;  // some 20 us
  constexpr int64_t kLightTokens = 4;
  if (!decode_->error.ok() || decode_->context.present() || tokens() > kLightTokens) return false;
  int64_t multiplications = 0;
  for (size_t step = 0; step < layer_count_; ++step) {
    Session::Layer& layer = LayerAt(step);
    const int64_t keys = layer.cache->length() + tokens();
    multiplications += tokens() * layer.layer->spec().MultiplicationsPerToken(keys);
    if (multiplications > kLightMultiplications) return false;
  }
  return true;
}

absl::Status DecodeWork::Begin() {
  ATTNSERVE_RETURN_IF_ERROR(CheckChain());
  ATTNSERVE_RETURN_IF_ERROR(decode_->error);
  before_.reserve(layer_count_);
  masks_.reserve(layer_count_);
  for (size_t step = 0; step < layer_count_; ++step) {
    Session::Layer& layer = LayerAt(step);
    before_.push_back({layer.length, layer.cache->length(), layer.has_context});
  }
  if (!decode_->request_id.empty()) {
    if (const KeptReply* reply = replies().Find(decode_->request_id)) return Replay(*reply);
    if (replies().WasApplied(decode_->request_id)) {
      return RequestAlreadyApplied(decode_->request_id, before_[0].length);
    }
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckPosition());
  for (size_t step = 0; step < layer_count_; ++step) {
    ATTNSERVE_RETURN_IF_ERROR(CheckLayer(step));
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckReplySize());
  ATTNSERVE_RETURN_IF_ERROR(Reserve());
  Extend();
  for (size_t step = 0; step < layer_count_; ++step) AllocateOutputs(step);
  return Start();
}

absl::Status DecodeWork::Reserve() {
  const auto tokens = [this](const Session::Layer& layer) -> int64_t {
    if (!IsCross(layer)) return layer.cache->length() + new_keys_;
    const bool comes = !layer.has_context && decode_->context.present();
    return comes ? decode_->context.dim(1) : layer.cache->length();
  };
  return session_->Reserve(first_layer_, first_layer_ + layer_count_, tokens);
}

void DecodeWork::Extend() {
  if (decode_->positions.present() && decode_->positions.elements() > 0) {
    positions_.resize(static_cast<size_t>(decode_->positions.elements()));
    std::memcpy(positions_.data(), decode_->positions.data, positions_.size() * 8);
  }
  for (size_t step = 0; step < layer_count_; ++step) {
    Session::Layer& layer = LayerAt(step);
    if (!IsCross(layer)) {
      layer.cache->Extend(new_keys_, positions_.empty() ? nullptr : positions_.data());
    } else if (!layer.has_context) {
      layer.cache->Extend(decode_->context.dim(1), nullptr);
    }
  }
}

void DecodeWork::Commit() {
  if (decode_->replayed) return;
  for (size_t step = 0; step < layer_count_; ++step) {
    Session::Layer& layer = LayerAt(step);
    layer.length = decode_->length;
    if (IsCross(layer)) layer.has_context = true;
  }
  if (decode_->request_id.empty()) return;
  // The step is applied: without memory for its reply, its id is kept all the same.
  bool kept = false;
  try {
    kept = KeepReply();
  } catch (const std::bad_alloc&) {
  }
  if (!kept) replies().Remember(decode_->request_id, decode_->length);
}

void DecodeWork::Abort() {
  if (decode_->chain != nullptr) decode_->chain->failed = true;
  for (size_t step = 0; step < before_.size(); ++step) {
    Session::Layer& layer = LayerAt(step);
    const int64_t keep = IsCross(layer) ? 0 : session_->reserved_tokens();
    layer.cache->Truncate(before_[step].cache_length, keep);
  }
}

std::unique_ptr<Work> MakeDecodeWork(DecodeCall* call, std::shared_ptr<Session> session,
                                     const WorkContext& context) {
  return std::make_unique<DecodeWork>(call, std::move(session), context);
}

}  // namespace attnserve
