#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/engine/checks.h"
#include "lib/engine/payload_hash.h"
#include "lib/engine/work.h"

namespace attnserve {
namespace {

// Kinds of ReplyPart: the output, or 1 + a stage.
constexpr int kOutputPart = 0;
int StagePart(Stage stage) { return 1 + static_cast<int>(stage); }

bool IsCross(const Session::Layer& layer) {
  return layer.layer->spec().kind == LayerKind::kCrossAttention;
}

bool IsCore(const Session::Layer& layer) {
  return layer.layer->spec().kind == LayerKind::kCoreAttention;
}

class DecodeWork final : public Work {
 public:
  DecodeWork(DecodeCall* call, std::shared_ptr<Session> session, const WorkContext& context)
      : Work(call, Phase::kDecode, context), decode_(call), session_(std::move(session)) {
    if (decode_->error.ok()) {
      decode_->error = CheckDecodeCall(*decode_, *session_, *context_.limits);
    }
    if (!decode_->error.ok()) return;
    if (!decode_->request_id.empty()) payload_hash_ = PayloadHash(*decode_);
    ReadTokenCounts();
    if (queries_ != 1) phase_ = Phase::kPrefill;
  }

  absl::Status Begin() override;
  void Commit() override;
  void Abort() override;
  int64_t tokens() const override { return std::max(queries_, new_keys_); }
  bool is_light() override;

 private:
  // What a layer held before the step, to go back to.
  struct Before {
    int64_t length = 0;
    int64_t cache_length = 0;
    bool has_context = false;
  };
  // A tensor of the reply, to keep a copy of.
  struct Part {
    int kind = kOutputPart;
    int layer = 0;
    DType dtype = DType::kF32;
    Shape shape;
    const void* data = nullptr;
    int64_t bytes = 0;
  };

  void ReadTokenCounts();
  Session::Layer& LayerAt(size_t step) { return session_->layers()[first_layer_ + step]; }
  ReplyCache& replies() {
    return layer_count_ > 1 ? session_->whole_replies() : *LayerAt(0).replies;
  }
  int64_t KeyCount(Session::Layer& layer) {  // S
    return IsCross(layer) ? layer.cache->length() : before_[0].length + new_keys_;
  }
  absl::Status CheckChain();
  absl::Status Replay(const KeptReply& reply);
  absl::Status CheckPosition();
  absl::Status CheckLayer(size_t step);
  absl::Status CheckReplySize();
  absl::Status TakeReplyBudget(int64_t bytes);
  absl::Status Reserve();
  bool KeepReply();
  void Extend();
  void AllocateOutputs(size_t step);
  absl::Status NextWave() override;
  void FillPass(size_t step);
  void FillInput(Session::Layer& layer, size_t step, LayerPass* pass);
  HeadsView Heads(const TensorView& tensor) const;

  DecodeCall* decode_;
  std::shared_ptr<Session> session_;
  uint64_t payload_hash_ = 0;
  size_t first_layer_ = 0;
  size_t layer_count_ = 1;
  int64_t queries_ = 0;   // T
  int64_t new_keys_ = 0;  // N
  size_t step_ = 0;       // next layer to start, from first_layer_
  absl::InlinedVector<Before, 1> before_;
  absl::InlinedVector<BroadcastMask, 1> masks_;
  std::vector<int64_t> positions_;  // [N] or empty
  std::vector<Part> parts_;         // empty without request_id
  AlignedBuffer<float> hidden_[2];
  void* output_ = nullptr;
  absl::InlinedVector<void*, 2> stage_data_;
};

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
    const LayerSpec& spec = layer.layer->spec();
    const int64_t widths = spec.query_width() + spec.key_width() + spec.value_width();
    const int64_t weights = spec.input_size * widths +
                            (spec.output_projection ? spec.context_width() : 0) * spec.output_size;
    const int64_t per_key = spec.head_count * (spec.key_head_size + spec.value_head_size);
    multiplications += tokens() * (weights + per_key * (layer.cache->length() + tokens()));
    if (multiplications > kLightMultiplications) return false;
  }
  return true;
}

absl::Status DecodeWork::CheckChain() {
  StepChain* chain = decode_->chain;
  if (chain == nullptr || !chain->failed) return absl::OkStatus();
  if (chain->restarts_at_expected_position && decode_->expected_position.has_value()) {
    chain->failed = false;
    return absl::OkStatus();
  }
  return PredecessorFailed();
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
               : PositionBeyondLength("expected_position", *decode_->expected_position, length);
  }
  const int64_t max_tokens = session_->options().max_tokens;
  const int64_t after = length + (IsCross(LayerAt(0)) ? queries_ : new_keys_);
  if (max_tokens > 0 && after > max_tokens) return MaxTokensExceeded(after, max_tokens);
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
  ATTNSERVE_RETURN_IF_ERROR(
      CheckScores(1, queries_, keys, spec.head_count, context_.limits->max_scores));
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
    if (stage_bytes > context_.limits->max_stage_bytes) {
      return ResponseTooLarge(stage_bytes, context_.limits->max_stage_bytes);
    }
    output_bytes = queries_ * spec.output_size * static_cast<int64_t>(ElementSize(call_->dtype)) *
                   call_->reply_expansion;
  }
  if (output_bytes > context_.limits->max_reply_bytes) {
    return ResponseTooLarge(output_bytes, context_.limits->max_reply_bytes);
  }
  ATTNSERVE_RETURN_IF_ERROR(TakeReplyBudget(stage_bytes + output_bytes));
  if (!decode_->request_id.empty()) replies().Prepare();
  return absl::OkStatus();
}

absl::Status DecodeWork::TakeReplyBudget(int64_t bytes) {
  int64_t* left = decode_->reply_budget_bytes;
  if (left == nullptr) return absl::OkStatus();
  if (bytes > *left) return ResponseTooLarge(bytes, *left);
  *left -= bytes;
  return absl::OkStatus();
}

absl::Status DecodeWork::Reserve() {
  for (size_t step = 0; step < layer_count_; ++step) {
    Session::Layer& layer = LayerAt(step);
    int64_t tokens = layer.cache->length();
    if (!IsCross(layer)) {
      tokens += new_keys_;
    } else if (!layer.has_context && decode_->context.present()) {
      tokens = decode_->context.dim(1);
    }
    ATTNSERVE_RETURN_IF_ERROR(layer.cache->Reserve(tokens));
  }
  return absl::OkStatus();
}

void DecodeWork::Extend() {
  if (decode_->positions.present()) {
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

void DecodeWork::AllocateOutputs(size_t step) {
  const LayerSpec& spec = LayerAt(step).layer->spec();
  const int64_t keys = KeyCount(LayerAt(step));
  const int layer = static_cast<int>(first_layer_ + step);
  const auto add = [this](int kind, int layer_index, DType dtype, const Shape& shape, void* data) {
    if (decode_->request_id.empty()) return data;
    int64_t bytes = static_cast<int64_t>(ElementSize(dtype));
    for (const int64_t size : shape) bytes *= size;
    parts_.push_back({kind, layer_index, dtype, shape, data, bytes});
    return data;
  };
  for (const Stage stage : call_->stages) {
    const DType type = StageType(stage, call_->dtype);
    const Shape shape = StageShape(stage, 1, spec.head_count, queries_, keys, spec.value_head_size);
    stage_data_.push_back(add(StagePart(stage), layer, type, shape,
                              call_->sink->StageOutput(stage, layer, type, shape)));
  }
  if (step + 1 < layer_count_) {
    hidden_[step % 2].Reserve(static_cast<size_t>(queries_ * spec.output_size));
    return;
  }
  const Shape shape = IsCore(LayerAt(step))
                          ? Shape{1, spec.head_count, queries_, spec.value_head_size}
                          : Shape{1, queries_, spec.output_size};
  output_ = add(kOutputPart, layer, call_->dtype, shape, call_->sink->Output(call_->dtype, shape));
}

absl::Status DecodeWork::NextWave() {
  if (step_ == layer_count_) return absl::OkStatus();
  current_layer_ = LayerAt(step_).layer;
  FillPass(step_);
  ++step_;
  return absl::OkStatus();
}

HeadsView DecodeWork::Heads(const TensorView& tensor) const {
  const int64_t heads = tensor.dim(1), tokens = tensor.dim(2), size = tensor.dim(3);
  return {tensor.dtype, tensor.data, tokens, heads, size, size, tokens * size};
}

void DecodeWork::FillInput(Session::Layer& layer, size_t step, LayerPass* pass) {
  if (IsCore(layer)) {
    pass->query = Heads(decode_->q);
    pass->key = Heads(decode_->k);
    pass->value = Heads(decode_->v);
    return;
  }
  const int64_t width = layer.layer->spec().input_size;
  if (step == 0) {
    pass->x = {decode_->x.dtype, decode_->x.data, queries_, width};
  } else {
    pass->x = {DType::kF32, hidden_[(step - 1) % 2].data(), queries_, width};
  }
  if (IsCross(layer) && !layer.has_context) {
    pass->context = {decode_->context.dtype, decode_->context.data, decode_->context.dim(1),
                     decode_->context.dim(2)};
  }
}

void DecodeWork::FillPass(size_t step) {
  Session::Layer& layer = LayerAt(step);
  const LayerSpec& spec = layer.layer->spec();
  const int64_t length = before_[step].length;
  LayerPass& pass = passes_.emplace_back();
  FillInput(layer, step, &pass);
  pass.cache = layer.cache.get();
  pass.query_position_base = length;
  pass.masks.causal_offset = length;
  pass.masks.attention_mask = masks_[step].Row(0);
  if (!positions_.empty()) pass.query_positions = positions_.data();
  if (IsCross(layer)) {
    pass.past_tokens = layer.has_context ? layer.cache->length() : 0;
  } else {
    pass.past_tokens = length;
    pass.key_position_base = length;
    pass.key_positions = pass.query_positions;
    if (decode_->tree_mask.present()) {
      pass.masks.tree_mask = static_cast<const uint8_t*>(decode_->tree_mask.data);
    }
  }
  if (step + 1 < layer_count_) {
    pass.output = {DType::kF32, hidden_[step % 2].data(), spec.output_size, spec.value_head_size};
  } else if (IsCore(layer)) {
    pass.output = {call_->dtype, output_, spec.value_head_size, queries_ * spec.value_head_size};
  } else {
    pass.output = {call_->dtype, output_, spec.output_size, spec.value_head_size};
  }
  const size_t stages = call_->stages.size();
  for (size_t i = 0; i < stages; ++i) {
    pass.stages.push_back({call_->stages[i], StageType(call_->stages[i], call_->dtype),
                           stage_data_[step * stages + i]});
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

void DecodeWork::Abort() {
  if (decode_->chain != nullptr) decode_->chain->failed = true;
  for (size_t step = 0; step < before_.size(); ++step) {
    Session::Layer& layer = LayerAt(step);
    const int64_t keep = IsCross(layer) ? 0 : session_->reserved_tokens();
    layer.cache->Truncate(before_[step].cache_length, keep);
  }
}

}  // namespace

std::unique_ptr<Work> MakeDecodeWork(DecodeCall* call, std::shared_ptr<Session> session,
                                     const WorkContext& context) {
  return std::make_unique<DecodeWork>(call, std::move(session), context);
}

}  // namespace attnserve
