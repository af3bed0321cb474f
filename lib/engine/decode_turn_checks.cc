// What a step is checked for when its turn has come; decode_checks.cc has the rest.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/engine/decode_work.h"

namespace attnserve {

absl::Status DecodeWork::CheckChain() {
  StepChain* chain = decode_->chain;
  if (chain == nullptr || !chain->failed) return absl::OkStatus();
  if (chain->restarts_at_expected_position && decode_->expected_position.has_value()) {
    chain->failed = false;
    return absl::OkStatus();
  }
  return PredecessorFailed();
}

absl::Status DecodeWork::CheckPosition() {
  const int64_t length = layer_count_ > 1 ? session_->CommonLength() : before_[0].length;
  if (length < 0) {
    const auto [least, most] =
        std::minmax_element(before_.begin(), before_.end(),
                            [](const Before& a, const Before& b) { return a.length < b.length; });
    return LayersDiffer(least->length, most->length);
  }
  if (decode_->expected_position.has_value() && *decode_->expected_position != length) {
    return *decode_->expected_position < length
               ? PositionConflict(*decode_->expected_position, length)
               : PositionBeyondLength("expected_position", *decode_->expected_position, length,
                                      "send the missing tokens first");
  }
  const int64_t max_tokens = session_->options().max_tokens;
  const int64_t after = length + (IsCross(LayerAt(0)) ? queries_ : new_keys_);
  if (max_tokens > 0 && after > max_tokens) {
    return MaxTokensExceeded(after, max_tokens,
                             "truncate or reset the session, or create one with more max_tokens "
                             "if its model allows it");
  }
  decode_->position = length;
  decode_->length = after;
  return absl::OkStatus();
}

absl::Status DecodeWork::CheckLayer(size_t step) {
  Session::Layer& layer = LayerAt(step);
  const LayerSpec& spec = layer.layer->spec();
  int64_t keys = KeyCount(layer);
  if (IsCross(layer)) {
    const int64_t index = static_cast<int64_t>(first_layer_ + step);
    if (!layer.has_context && !decode_->context.present()) return LayerNeedsContext(index);
    if (layer.has_context) {
      if (decode_->context.present()) {
        return BadOption("context", absl::StrCat("must not be set: layer ", index,
                                                 " has one already; ResetCache drops it"));
      }
    } else {
      keys = decode_->context.dim(1);
    }
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckScores(IsCore(layer) ? "q" : "x", 1, queries_, keys,
                                        spec.head_count, context_.limits->max_scores));
  ATTNSERVE_ASSIGN_OR_RETURN(
      BroadcastMask mask,
      ResolveMask("attention_mask", decode_->attention_mask, 1, spec.head_count, queries_, keys));
  masks_.push_back(mask);
  return absl::OkStatus();
}

absl::Status DecodeWork::CheckReplySize() {
  int64_t stage_bytes = 0, output_bytes = 0;
  for (size_t step = 0; step < layer_count_; ++step) {
    Session::Layer& layer = LayerAt(step);
    const LayerSpec& spec = layer.layer->spec();
    const bool new_context = IsCross(layer) && !layer.has_context;
    const int64_t keys = new_context ? decode_->context.dim(1) : KeyCount(layer);
    stage_bytes += StageBytes(call_->stages, call_->dtype, 1, spec.head_count, queries_, keys,
                              spec.value_head_size) *
                   call_->reply_expansion;
    output_bytes = queries_ * spec.output_size * static_cast<int64_t>(ElementSize(call_->dtype)) *
                   call_->reply_expansion;
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckReplyBytes(stage_bytes, output_bytes, *context_.limits));
  ATTNSERVE_RETURN_IF_ERROR(TakeReplyBudget(stage_bytes + output_bytes));
  if (!decode_->request_id.empty()) replies().Prepare();
  return absl::OkStatus();
}

absl::Status DecodeWork::TakeReplyBudget(int64_t bytes) {
  int64_t* left = decode_->reply_budget_bytes;
  if (left == nullptr) return absl::OkStatus();
  if (bytes > *left) {
    return ResponseTooLarge("the step's tensors", bytes, *left,
                            "send fewer steps in one message, or ask for fewer stages");
  }
  *left -= bytes;
  return absl::OkStatus();
}

}  // namespace attnserve
