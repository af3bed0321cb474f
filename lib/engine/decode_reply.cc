// The reply that a step with a request_id leaves behind, for retries.
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/engine/decode_work.h"

namespace attnserve {

absl::Status DecodeWork::Replay(const KeptReply& reply) {
  if (reply.payload_hash != payload_hash_) {
    return BadOption("request_id",
                     absl::StrCat("\"", std::string(decode_->request_id),
                                  "\" was used before with another payload; use a new "
                                  "id for every new step"));
  }
  int64_t bytes = 0;
  for (const ReplyPart& part : reply.parts) bytes += static_cast<int64_t>(part.bytes.size());
  ATTNSERVE_RETURN_IF_ERROR(TakeReplyBudget(bytes * call_->reply_expansion));
  for (const ReplyPart& part : reply.parts) {
    void* target = part.kind == kOutputPart
                       ? call_->sink->Output(part.dtype, part.shape)
                       : call_->sink->StageOutput(static_cast<Stage>(part.kind - 1), part.layer,
                                                  part.dtype, part.shape);
    if (!part.bytes.empty()) std::memcpy(target, part.bytes.data(), part.bytes.size());
  }
  decode_->position = reply.position;
  decode_->length = reply.length;
  decode_->replayed = true;
  Finish();
  return absl::OkStatus();
}

// Keeps the reply if it and the budget are such that it can be; returns whether.
bool DecodeWork::KeepReply() {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.bytes;
  const int64_t charge = ReplyCache::ChargeFor(bytes);
  if (charge > ReplyCache::kBytes) return false;
  KeptReply reply = replies().MakeRoom(charge);
  reply.payload_hash = payload_hash_;
  reply.position = decode_->position;
  reply.length = decode_->length;
  reply.parts.resize(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    ReplyPart& copy = reply.parts[i];
    copy.kind = part.kind;
    copy.layer = part.layer;
    copy.dtype = part.dtype;
    copy.shape = part.shape;
    copy.bytes.assign(static_cast<const char*>(part.data), static_cast<size_t>(part.bytes));
  }
  if (!context_.session_pool->Charge(charge).ok()) {
    (void)replies().MakeRoom(ReplyCache::kBytes);
    if (!context_.session_pool->Charge(charge).ok()) return false;
  }
  replies().Add(decode_->request_id, charge, std::move(reply));
  return true;
}

}  // namespace attnserve
