#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/engine/checks.h"
#include "lib/engine/work.h"

namespace attnserve {
namespace {

int64_t Int64At(const TensorView& tensor, int64_t index) {
  int64_t value;
  std::memcpy(&value, static_cast<const char*>(tensor.data) + index * 8, sizeof value);
  return value;
}

// Head count of a 4-dimensional tensor; `count` is 0 or must agree.
absl::Status TakeHeads(std::string_view field, const TensorView& tensor, int64_t* count) {
  const int64_t heads = tensor.rank() == 4 ? tensor.dim(1) : 0;
  if (*count != 0 && *count != heads) {
    return BadShape(field, absl::StrCat("is ", *count, " but the tensor has ", heads,
                                        " heads; leave it unset or make them equal"));
  }
  *count = heads;
  return absl::OkStatus();
}

class AttendWork final : public Work {
 public:
  AttendWork(AttendCall* call, const WorkContext& context)
      : Work(call, Phase::kAttend, context), attend_(call) {}

  absl::Status Check();
  absl::Status Begin() override;
  int64_t tokens() const override { return batch_ * queries_; }

 private:
  absl::Status ReadHeads();
  absl::Status CheckShapes();
  absl::Status CheckMasks();
  absl::Status CheckReplySize() const;
  absl::Status NextWave() override;
  void WaveEnded() override;
  absl::Status FillPass(int64_t batch_row);
  HeadsView Heads(const TensorView& tensor, int64_t heads, int64_t batch_row) const;
  int64_t new_keys() const { return flat_ ? attend_->k.dim(1) : attend_->k.dim(2); }
  int64_t keys_total() const { return past_ + new_keys(); }

  AttendCall* attend_;
  LayerSpec spec_;
  std::unique_ptr<AttentionLayer> layer_;
  BroadcastMask mask_;
  bool flat_ = false;  // [B, T, heads * size] instead of [B, heads, T, size]
  int64_t batch_ = 0, queries_ = 0, past_ = 0;
  int64_t next_batch_row_ = 0;
  int64_t wave_begin_ = 0;
  void* output_ = nullptr;
  void* present_[2] = {nullptr, nullptr};
  absl::InlinedVector<void*, 2> stage_data_;
  std::vector<float> row_;  // one key or value
};

// Head counts from the tensors, or for 3-dimensional ones from head_count and kv_head_count.
absl::Status AttendWork::ReadHeads() {
  const TensorView& q = attend_->q;
  if (!q.present() || (q.rank() != 3 && q.rank() != 4)) {
    return BadShape(
        "q", absl::StrCat(q.present() ? absl::StrCat("came with shape ", ShapeToString(q.shape))
                                      : std::string("is missing"),
                          "; expected [B, H, T, d_k] or [B, T, H * d_k]"));
  }
  flat_ = q.rank() == 3;
  batch_ = q.dim(0);
  queries_ = flat_ ? q.dim(1) : q.dim(2);
  spec_.kind = LayerKind::kCoreAttention;
  spec_.head_count = attend_->head_count;
  spec_.kv_head_count = attend_->kv_head_count;
  if (!flat_) {
    ATTNSERVE_RETURN_IF_ERROR(TakeHeads("head_count", q, &spec_.head_count));
    ATTNSERVE_RETURN_IF_ERROR(TakeHeads("kv_head_count", attend_->k, &spec_.kv_head_count));
  } else if (spec_.head_count <= 0 || spec_.kv_head_count <= 0) {
    const bool query = spec_.head_count <= 0;
    const int64_t count = query ? spec_.head_count : spec_.kv_head_count;
    return BadOption(query ? "head_count" : "kv_head_count",
                     absl::StrCat(count == 0 ? "is not set" : absl::StrCat("is ", count),
                                  "; 3-dimensional tensors need both head counts, 1 or more"));
  } else if (spec_.head_count > kMaxHeads || spec_.kv_head_count > kMaxHeads) {
    const bool query = spec_.head_count > kMaxHeads;
    return TooLarge(query ? "head_count" : "kv_head_count",
                    absl::StrCat("is ", query ? spec_.head_count : spec_.kv_head_count,
                                 ", at most ", kMaxHeads));
  }
  return absl::OkStatus();
}

absl::Status AttendWork::CheckShapes() {
  const DType dtype = call_->dtype;
  const TensorView &q = attend_->q, &k = attend_->k, &v = attend_->v;
  const int64_t heads = spec_.head_count, kv_heads = spec_.kv_head_count;
  if (flat_) {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckTensor("q", q, dtype, {batch_, queries_, kAnySize}, "[B, T, H * d_k]"));
    if (q.dim(2) == 0 || q.dim(2) % heads != 0) {
      return BadShape("q", absl::StrCat("has rows of ", q.dim(2), " elements, which head_count ",
                                        heads, " does not divide"));
    }
    spec_.key_head_size = q.dim(2) / heads;
    ATTNSERVE_RETURN_IF_ERROR(CheckTensor(
        "k", k, dtype, {batch_, kAnySize, kv_heads * spec_.key_head_size}, "[B, N, G * d_k]"));
    ATTNSERVE_RETURN_IF_ERROR(
        CheckTensor("v", v, dtype, {batch_, k.dim(1), kAnySize}, "[B, N, G * d_v]"));
    if (v.dim(2) == 0 || v.dim(2) % kv_heads != 0) {
      return BadShape("v", absl::StrCat("has rows of ", v.dim(2), " elements, which kv_head_count ",
                                        kv_heads, " does not divide"));
    }
    spec_.value_head_size = v.dim(2) / kv_heads;
  } else {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckTensor("q", q, dtype, {batch_, heads, queries_, kAnySize}, "[B, H, T, d_k]"));
    spec_.key_head_size = q.dim(3);
    ATTNSERVE_RETURN_IF_ERROR(CheckTensor(
        "k", k, dtype, {batch_, kAnySize, kAnySize, spec_.key_head_size}, "[B, G, N, d_k]"));
    ATTNSERVE_RETURN_IF_ERROR(
        CheckTensor("v", v, dtype, {batch_, kv_heads, k.dim(2), kAnySize}, "[B, G, N, d_v]"));
    spec_.value_head_size = v.dim(3);
  }
  if (batch_ == 0) return BadShape("q", "has a batch of 0; expected at least one sequence");
  // CompleteLayerSpec takes a 0 for "unset" and would fill in a size the tensors do not have.
  if (spec_.head_count == 0 || spec_.key_head_size == 0) {
    return BadShape("q", absl::StrCat("came with shape ", ShapeToString(q.shape),
                                      "; expected at least one head of at least one element"));
  }
  if (spec_.kv_head_count == 0) {
    return BadShape("k", absl::StrCat("came with shape ", ShapeToString(k.shape),
                                      "; expected at least one head"));
  }
  if (spec_.value_head_size == 0) {
    return BadShape("v", absl::StrCat("came with shape ", ShapeToString(v.shape),
                                      "; expected heads of at least one element"));
  }

  if (attend_->past_key.present() != attend_->past_value.present()) {
    return BadOption(attend_->past_key.present() ? "past_value" : "past_key",
                     "is missing; past_key and past_value come together");
  }
  if (attend_->past_key.present()) {
    ATTNSERVE_RETURN_IF_ERROR(CheckTensor("past_key", attend_->past_key, dtype,
                                          {batch_, kv_heads, kAnySize, spec_.key_head_size},
                                          "[B, G, P, d_k]"));
    past_ = attend_->past_key.dim(2);
    ATTNSERVE_RETURN_IF_ERROR(CheckTensor("past_value", attend_->past_value, dtype,
                                          {batch_, kv_heads, past_, spec_.value_head_size},
                                          "[B, G, P, d_v]"));
  }
  return absl::OkStatus();
}

absl::Status AttendWork::CheckMasks() {
  const TensorView& lengths = attend_->static_cache_lengths;
  if (lengths.present()) {
    ATTNSERVE_RETURN_IF_ERROR(CheckAbsent("past_key", attend_->past_key,
                                          "static_cache_lengths says that k is the whole cache"));
    ATTNSERVE_RETURN_IF_ERROR(
        CheckAbsent("masks.lengths", attend_->lengths,
                    "static_cache_lengths already says which keys are valid"));
    ATTNSERVE_RETURN_IF_ERROR(
        CheckTensor("static_cache_lengths", lengths, DType::kI64, {batch_}, "[B]"));
    ATTNSERVE_RETURN_IF_ERROR(CheckRange("static_cache_lengths", lengths, 0, keys_total(), true));
  }
  ATTNSERVE_RETURN_IF_ERROR(
      CheckPadding(attend_->lengths, attend_->key_mask, batch_, keys_total()));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckMaskContents("masks.attention_mask", attend_->attention_mask, call_->dtype));
  ATTNSERVE_ASSIGN_OR_RETURN(mask_, ResolveMask("masks.attention_mask", attend_->attention_mask,
                                                batch_, spec_.head_count, queries_, keys_total()));
  return absl::OkStatus();
}

absl::Status AttendWork::CheckReplySize() const {
  const int64_t element = static_cast<int64_t>(ElementSize(call_->dtype)) * call_->reply_expansion;
  const int64_t stages = StageBytes(call_->stages, call_->dtype, batch_, spec_.head_count, queries_,
                                    keys_total(), spec_.value_head_size) *
                         call_->reply_expansion;
  int64_t bytes = batch_ * queries_ * spec_.context_width() * element;
  if (attend_->return_present) {
    bytes += batch_ * keys_total() * (spec_.key_width() + spec_.value_width()) * element;
  }
  return CheckReplyBytes(stages, bytes, *context_.limits);
}

absl::Status AttendWork::Check() {
  ATTNSERVE_RETURN_IF_ERROR(ReadHeads());
  ATTNSERVE_RETURN_IF_ERROR(CheckShapes());
  spec_.attention = attend_->options;
  ATTNSERVE_RETURN_IF_ERROR(CheckAttentionOptions("options", spec_.head_count, spec_.key_head_size,
                                                  spec_.kind, spec_.attention));
  ATTNSERVE_RETURN_IF_ERROR(CompleteLayerSpec("", &spec_));
  ATTNSERVE_RETURN_IF_ERROR(CheckMasks());
  ATTNSERVE_RETURN_IF_ERROR(CheckDropout(attend_->dropout));
  ATTNSERVE_RETURN_IF_ERROR(CheckStages(call_->stages));
  ATTNSERVE_RETURN_IF_ERROR(CheckScores("q", batch_, queries_, keys_total(), spec_.head_count,
                                        context_.limits->max_scores));
  ATTNSERVE_RETURN_IF_ERROR(CheckReplySize());
  ATTNSERVE_ASSIGN_OR_RETURN(layer_, AttentionLayer::CreateCore(spec_));
  return absl::OkStatus();
}

absl::Status AttendWork::Begin() {
  const int64_t heads = spec_.head_count, size = spec_.value_head_size;
  const Shape shape =
      flat_ ? Shape{batch_, queries_, heads * size} : Shape{batch_, heads, queries_, size};
  output_ = call_->sink->Output(call_->dtype, shape);
  for (const Stage stage : call_->stages) {
    stage_data_.push_back(
        call_->sink->StageOutput(stage, 0, StageType(stage, call_->dtype),
                                 StageShape(stage, batch_, heads, queries_, keys_total(), size)));
  }
  if (attend_->return_present) {
    const int64_t kv_heads = spec_.kv_head_count;
    const Shape key_shape = {batch_, kv_heads, keys_total(), spec_.key_head_size};
    const Shape value_shape = {batch_, kv_heads, keys_total(), size};
    present_[0] = call_->sink->Present(true, call_->dtype, key_shape);
    present_[1] = call_->sink->Present(false, call_->dtype, value_shape);
    row_.resize(static_cast<size_t>(std::max(spec_.key_head_size, size)));
  }
  return Start();
}

absl::Status AttendWork::NextWave() {
  current_layer_ = layer_.get();
  // The batch of empty tensors is bounded by nothing that was sent.
  if (queries_ == 0 && keys_total() == 0) next_batch_row_ = batch_;
  const int64_t count = SequencesPerWave(layer_->kv_layout(), queries_, keys_total());
  wave_begin_ = next_batch_row_;
  const int64_t end = std::min(batch_, next_batch_row_ + count);
  for (; next_batch_row_ < end; ++next_batch_row_) {
    ATTNSERVE_RETURN_IF_ERROR(FillPass(next_batch_row_));
  }
  return absl::OkStatus();
}

void AttendWork::WaveEnded() {
  if (!attend_->return_present) return;
  const int64_t element = static_cast<int64_t>(ElementSize(call_->dtype));
  const int64_t key_size = spec_.key_head_size, value_size = spec_.value_head_size;
  for (size_t i = 0; i < passes_.size(); ++i) {
    const int64_t first_row = (wave_begin_ + static_cast<int64_t>(i)) * spec_.kv_head_count;
    for (int64_t head = 0; head < spec_.kv_head_count; ++head) {
      for (int64_t token = 0; token < keys_total(); ++token) {
        const int64_t index = (first_row + head) * keys_total() + token;
        passes_[i].cache->ReadToken(token, head, row_.data(), nullptr);
        StoreFromF32(row_.data(), key_size, call_->dtype,
                     static_cast<char*>(present_[0]) + index * key_size * element);
        passes_[i].cache->ReadToken(token, head, nullptr, row_.data());
        StoreFromF32(row_.data(), value_size, call_->dtype,
                     static_cast<char*>(present_[1]) + index * value_size * element);
      }
    }
  }
}

HeadsView AttendWork::Heads(const TensorView& tensor, int64_t heads, int64_t batch_row) const {
  HeadsView view;
  view.dtype = tensor.dtype;
  view.heads = heads;
  if (tensor.rank() == 3) {
    view.tokens = tensor.dim(1);
    view.size = tensor.dim(2) / heads;
    view.token_stride = tensor.dim(2);
    view.head_stride = view.size;
  } else {
    view.tokens = tensor.dim(2);
    view.size = tensor.dim(3);
    view.token_stride = view.size;
    view.head_stride = view.tokens * view.size;
  }
  view.data =
      static_cast<const char*>(tensor.data) +
      batch_row * view.tokens * heads * view.size * static_cast<int64_t>(ElementSize(tensor.dtype));
  return view;
}

absl::Status AttendWork::FillPass(int64_t batch_row) {
  const int64_t kv_heads = spec_.kv_head_count;
  LayerPass& pass = passes_.emplace_back();
  pass.query = Heads(attend_->q, spec_.head_count, batch_row);
  pass.key = Heads(attend_->k, kv_heads, batch_row);
  pass.value = Heads(attend_->v, kv_heads, batch_row);
  ATTNSERVE_ASSIGN_OR_RETURN(pass.cache, Scratch(layer_->kv_layout(), keys_total()));
  pass.cache->Extend(keys_total(), nullptr);
  if (past_ > 0) {
    pass.cache->WriteTokens(0, Heads(attend_->past_key, kv_heads, batch_row),
                            Heads(attend_->past_value, kv_heads, batch_row), 0, kv_heads);
  }
  pass.past_tokens = past_;
  pass.key_position_base = past_;
  pass.masks.causal_offset = past_;
  if (attend_->static_cache_lengths.present()) {
    pass.masks.valid_keys = Int64At(attend_->static_cache_lengths, batch_row);
    pass.masks.causal_offset = pass.masks.valid_keys - queries_;
  }
  pass.query_position_base = pass.masks.causal_offset;
  if (attend_->lengths.present()) pass.masks.valid_keys = Int64At(attend_->lengths, batch_row);
  if (attend_->key_mask.present()) {
    pass.masks.key_mask =
        static_cast<const uint8_t*>(attend_->key_mask.data) + batch_row * keys_total();
  }
  pass.masks.attention_mask = mask_.Row(batch_row);
  pass.dropout = attend_->dropout;
  pass.dropout_stream = batch_row;

  const int64_t size = spec_.value_head_size, heads = spec_.head_count;
  const int64_t offset =
      batch_row * queries_ * heads * size * static_cast<int64_t>(ElementSize(call_->dtype));
  pass.output.dtype = call_->dtype;
  pass.output.data = static_cast<char*>(output_) + offset;
  pass.output.token_stride = flat_ ? heads * size : size;
  pass.output.head_stride = flat_ ? size : queries_ * size;
  for (size_t i = 0; i < call_->stages.size(); ++i) {
    const Stage stage = call_->stages[i];
    const int64_t bytes =
        StageBytes({&stage, 1}, call_->dtype, 1, heads, queries_, keys_total(), size);
    pass.stages.push_back({stage, StageType(stage, call_->dtype),
                           static_cast<char*>(stage_data_[i]) + batch_row * bytes});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Work>> MakeAttendWork(AttendCall* call, const WorkContext& context) {
  auto work = std::make_unique<AttendWork>(call, context);
  ATTNSERVE_RETURN_IF_ERROR(work->Check());
  return work;
}

}  // namespace attnserve
