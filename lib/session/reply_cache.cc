#include "lib/session/reply_cache.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace attnserve {
namespace {

uint64_t IdHash(std::string_view id) {
  return absl::HashOf(absl::string_view(id.data(), id.size()));
}

}  // namespace

const KeptReply* ReplyCache::Find(std::string_view request_id) const {
  for (size_t age = 0; age < count_; ++age) {
    if (At(age).request_id == request_id) return &At(age);
  }
  return nullptr;
}

bool ReplyCache::WasApplied(std::string_view request_id) const {
  const uint64_t hash = IdHash(request_id);
  return std::any_of(forgotten_.begin(), forgotten_.end(),
                     [hash](const ForgottenId& id) { return id.hash == hash; });
}

void ReplyCache::Prepare() {
  if (replies_.empty()) replies_.resize(kReplies);
  forgotten_.reserve(kForgottenIds);
}

KeptReply ReplyCache::MakeRoom(int64_t charged_bytes) {
  KeptReply spare;
  while (count_ > 0 && (count_ == kReplies || bytes_ + charged_bytes > kBytes)) {
    KeptReply dropped = DropOldest();
    if (dropped.charged_bytes <= 2 * charged_bytes) spare = std::move(dropped);
  }
  return spare;
}

void ReplyCache::Add(std::string_view request_id, int64_t charged_bytes, KeptReply reply) {
  Prepare();
  (void)MakeRoom(charged_bytes);
  KeptReply& slot = At(count_);
  slot = std::move(reply);
  slot.request_id.assign(request_id.data(), request_id.size());
  slot.charged_bytes = charged_bytes;
  bytes_ += charged_bytes;
  ++count_;
}

void ReplyCache::Remember(std::string_view request_id, int64_t length) {
  const ForgottenId id{IdHash(request_id), length};
  if (forgotten_.size() < kForgottenIds) {
    forgotten_.push_back(id);
  } else {
    forgotten_[next_forgotten_] = id;
    next_forgotten_ = (next_forgotten_ + 1) % kForgottenIds;
  }
}

KeptReply ReplyCache::DropOldest() {
  KeptReply oldest = std::move(At(0));
  pool_->Refund(oldest.charged_bytes);
  bytes_ -= oldest.charged_bytes;
  Remember(oldest.request_id, oldest.length);
  first_ = (first_ + 1) % kReplies;
  --count_;
  return oldest;
}

void ReplyCache::Forget(int64_t length) {
  while (count_ > 0 && At(count_ - 1).length > length) {
    KeptReply& latest = At(count_ - 1);
    pool_->Refund(latest.charged_bytes);
    bytes_ -= latest.charged_bytes;
    latest = KeptReply();
    --count_;
  }
  const auto cut = [length](const ForgottenId& id) { return id.length > length; };
  if (std::any_of(forgotten_.begin(), forgotten_.end(), cut)) {
    std::rotate(forgotten_.begin(),
                forgotten_.begin() + static_cast<std::ptrdiff_t>(next_forgotten_),
                forgotten_.end());
    next_forgotten_ = 0;
    forgotten_.erase(std::remove_if(forgotten_.begin(), forgotten_.end(), cut), forgotten_.end());
  }
}

}  // namespace attnserve
