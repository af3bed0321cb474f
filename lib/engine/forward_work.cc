#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/engine/checks.h"
#include "lib/engine/work.h"

namespace attnserve {
namespace {

// Nothing is kept, so nothing is rounded.
KvLayout ScratchLayout(const AttentionLayer& layer) {
  KvLayout layout = layer.kv_layout();
  layout.dtype = DType::kF32;
  return layout;
}

// Rows of a [batch, rows, width] tensor that belong to one batch row.
RowsView BatchRow(const TensorView& tensor, int64_t batch_row) {
  const int64_t rows = tensor.dim(1), width = tensor.dim(2);
  const int64_t offset = batch_row * rows * width * static_cast<int64_t>(ElementSize(tensor.dtype));
  return {tensor.dtype, static_cast<const char*>(tensor.data) + offset, rows, width};
}

class ForwardWork final : public Work {
 public:
  ForwardWork(ForwardCall* call, const WorkContext& context)
      : Work(call, Phase::kForward, context), forward_(call) {}

  absl::Status Check();
  absl::Status Begin() override;
  int64_t tokens() const override { return batch_ * queries_; }

 private:
  absl::Status CheckLayer(int32_t index, const LayerSpec& spec);
  void ReadPositions();
  absl::Status NextWave() override;
  absl::Status FillPass(const AttentionLayer& layer, int64_t batch_row);
  void FillMasks(const LayerSpec& spec, int64_t batch_row, LayerPass* pass) const;
  RowsView LayerInput(int64_t batch_row) const;
  void AllocateOutputs(const LayerSpec& spec);
  int64_t KeyCount(const LayerSpec& spec) const {
    return spec.kind == LayerKind::kCrossAttention ? forward_->context.dim(1) : queries_;
  }

  ForwardCall* forward_;
  std::vector<const AttentionLayer*> layers_;
  std::vector<BroadcastMask> masks_;  // [layers_]
  std::vector<int64_t> positions_;    // [B, T] or empty
  int32_t first_layer_ = 0;           // index in the model of layers_[0]
  size_t layer_index_ = 0;
  int64_t batch_ = 0, queries_ = 0;
  int64_t next_batch_row_ = 0;
  AlignedBuffer<float> hidden_[2];  // [B, T, d] between layers, used in turn
  void* output_ = nullptr;
  absl::InlinedVector<void*, 2> stage_data_;  // of the current layer, [stages]
};

absl::Status ForwardWork::Check() {
  const Model& model = *forward_->model;
  const int64_t layer_count = static_cast<int64_t>(model.layers().size());
  if (forward_->layer.has_value()) {
    first_layer_ = *forward_->layer;
    if (first_layer_ < 0 || first_layer_ >= layer_count) {
      return LayerNotFound(first_layer_, layer_count);
    }
    layers_.push_back(model.layers()[static_cast<size_t>(first_layer_)].get());
  } else {
    if (!model.chains()) {
      return BadOption("layer",
                       "is not set, but the layers' sizes do not let them run in order; "
                       "name one layer");
    }
    for (const auto& layer : model.layers()) layers_.push_back(layer.get());
  }

  const int64_t input_size = layers_.front()->spec().input_size;
  ATTNSERVE_RETURN_IF_ERROR(CheckTensor("x", forward_->x, forward_->dtype,
                                        {kAnySize, kAnySize, input_size}, "[B, T, input_size]"));
  batch_ = forward_->x.dim(0);
  queries_ = forward_->x.dim(1);
  if (batch_ == 0 || queries_ == 0) {
    return BadShape("x", absl::StrCat("came with shape ", ShapeToString(forward_->x.shape),
                                      "; expected at least one sequence and one token"));
  }
  if (model.max_tokens() > 0 && queries_ > model.max_tokens()) {
    return MaxTokensExceeded(queries_, model.max_tokens(), "send shorter sequences");
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckDropout(forward_->dropout));
  ATTNSERVE_RETURN_IF_ERROR(CheckStages(call_->stages));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckMaskContents("masks.attention_mask", forward_->attention_mask, call_->dtype));

  int64_t stage_bytes = 0, output_bytes = 0;
  bool has_cross = false;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerSpec& spec = layers_[i]->spec();
    has_cross |= spec.kind == LayerKind::kCrossAttention;
    ATTNSERVE_RETURN_IF_ERROR(CheckLayer(first_layer_ + static_cast<int32_t>(i), spec));
    stage_bytes += StageBytes(call_->stages, call_->dtype, batch_, spec.head_count, queries_,
                              KeyCount(spec), spec.value_head_size) *
                   call_->reply_expansion;
    output_bytes = batch_ * queries_ * spec.output_size *
                   static_cast<int64_t>(ElementSize(call_->dtype)) * call_->reply_expansion;
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckReplyBytes(stage_bytes, output_bytes, *context_.limits));
  if (!has_cross) {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckAbsent("context", forward_->context, "no layer of this call is cross-attention"));
  }
  if (forward_->positions.present()) {
    if (forward_->positions.rank() == 1) {
      ATTNSERVE_RETURN_IF_ERROR(
          CheckTensor("positions", forward_->positions, DType::kI64, {queries_}, "[T]"));
    } else {
      ATTNSERVE_RETURN_IF_ERROR(
          CheckTensor("positions", forward_->positions, DType::kI64, {batch_, queries_}, "[B, T]"));
    }
    ATTNSERVE_RETURN_IF_ERROR(CheckRange("positions", forward_->positions, 0, kMaxPosition, false));
  }
  return absl::OkStatus();
}

absl::Status ForwardWork::CheckLayer(int32_t index, const LayerSpec& spec) {
  if (spec.kind == LayerKind::kCrossAttention) {
    if (!forward_->context.present()) return LayerNeedsContext(index);
    ATTNSERVE_RETURN_IF_ERROR(CheckTensor("context", forward_->context, call_->dtype,
                                          {batch_, kAnySize, spec.context_size},
                                          "[B, S, context_size]"));
  }
  const int64_t keys = KeyCount(spec);
  ATTNSERVE_RETURN_IF_ERROR(CheckPadding(forward_->lengths, forward_->key_mask, batch_, keys));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckScores("x", batch_, queries_, keys, spec.head_count, context_.limits->max_scores));
  ATTNSERVE_ASSIGN_OR_RETURN(BroadcastMask mask,
                             ResolveMask("masks.attention_mask", forward_->attention_mask, batch_,
                                         spec.head_count, queries_, keys));
  masks_.push_back(mask);
  return absl::OkStatus();
}

// Explicit positions, or with a key mask the running count of valid tokens.
void ForwardWork::ReadPositions() {
  const bool counts =
      forward_->key_mask.present() && layers_.front()->spec().kind == LayerKind::kSelfAttention;
  if (!forward_->positions.present() && !counts) return;
  positions_.resize(static_cast<size_t>(batch_ * queries_));
  const auto* valid = static_cast<const uint8_t*>(forward_->key_mask.data);
  for (int64_t b = 0; b < batch_; ++b) {
    int64_t* row = positions_.data() + b * queries_;
    if (forward_->positions.present()) {
      const int64_t first = forward_->positions.rank() == 1 ? 0 : b * queries_;
      std::memcpy(row, static_cast<const char*>(forward_->positions.data) + first * 8,
                  static_cast<size_t>(queries_) * 8);
    } else {
      int64_t count = 0;
      for (int64_t t = 0; t < queries_; ++t) {
        count += valid[b * queries_ + t];
        row[t] = std::max<int64_t>(count - 1, 0);
      }
    }
  }
}

absl::Status ForwardWork::Begin() {
  ReadPositions();
  const Shape shape = {batch_, queries_, layers_.back()->spec().output_size};
  output_ = call_->sink->Output(call_->dtype, shape);
  return Start();
}

void ForwardWork::AllocateOutputs(const LayerSpec& spec) {
  stage_data_.clear();
  for (const Stage stage : call_->stages) {
    const Shape shape =
        StageShape(stage, batch_, spec.head_count, queries_, KeyCount(spec), spec.value_head_size);
    stage_data_.push_back(
        call_->sink->StageOutput(stage, first_layer_ + static_cast<int32_t>(layer_index_),
                                 StageType(stage, call_->dtype), shape));
  }
  if (layer_index_ + 1 < layers_.size()) {
    hidden_[layer_index_ % 2].Reserve(static_cast<size_t>(batch_ * queries_ * spec.output_size));
  }
}

absl::Status ForwardWork::NextWave() {
  if (next_batch_row_ == batch_) {
    next_batch_row_ = 0;
    ++layer_index_;
  }
  if (layer_index_ == layers_.size()) return absl::OkStatus();
  current_layer_ = layers_[layer_index_];
  if (next_batch_row_ == 0) AllocateOutputs(current_layer_->spec());
  const int64_t count =
      SequencesPerWave(ScratchLayout(*current_layer_), queries_, KeyCount(current_layer_->spec()));
  const int64_t end = std::min(batch_, next_batch_row_ + count);
  for (; next_batch_row_ < end; ++next_batch_row_) {
    ATTNSERVE_RETURN_IF_ERROR(FillPass(*current_layer_, next_batch_row_));
  }
  return absl::OkStatus();
}

RowsView ForwardWork::LayerInput(int64_t batch_row) const {
  if (layer_index_ == 0) return BatchRow(forward_->x, batch_row);
  const int64_t width = current_layer_->spec().input_size;
  return {DType::kF32, hidden_[(layer_index_ - 1) % 2].data() + batch_row * queries_ * width,
          queries_, width};
}

void ForwardWork::FillMasks(const LayerSpec& spec, int64_t batch_row, LayerPass* pass) const {
  SequenceMasks& masks = pass->masks;
  masks.attention_mask = masks_[layer_index_].Row(batch_row);
  const bool self = spec.kind == LayerKind::kSelfAttention;
  if (forward_->lengths.present()) {
    std::memcpy(&masks.valid_keys, static_cast<const char*>(forward_->lengths.data) + batch_row * 8,
                8);
    if (self) masks.valid_queries = masks.valid_keys;
  }
  if (forward_->key_mask.present()) {
    masks.key_mask =
        static_cast<const uint8_t*>(forward_->key_mask.data) + batch_row * KeyCount(spec);
    if (self) masks.query_mask = masks.key_mask;
  }
}

absl::Status ForwardWork::FillPass(const AttentionLayer& layer, int64_t batch_row) {
  const LayerSpec& spec = layer.spec();
  const bool cross = spec.kind == LayerKind::kCrossAttention;
  LayerPass& pass = passes_.emplace_back();
  pass.x = LayerInput(batch_row);
  if (cross) pass.context = BatchRow(forward_->context, batch_row);
  ATTNSERVE_ASSIGN_OR_RETURN(pass.cache, Scratch(ScratchLayout(layer), KeyCount(spec)));
  if (!positions_.empty()) {
    pass.query_positions = positions_.data() + batch_row * queries_;
    if (!cross) pass.key_positions = pass.query_positions;
  }
  pass.cache->Extend(KeyCount(spec), pass.key_positions);
  FillMasks(spec, batch_row, &pass);
  pass.dropout = forward_->dropout;
  pass.dropout_stream = ((first_layer_ + static_cast<int64_t>(layer_index_)) << 32) | batch_row;

  const int64_t row_elements = queries_ * spec.output_size;
  if (layer_index_ + 1 == layers_.size()) {
    const int64_t offset =
        batch_row * row_elements * static_cast<int64_t>(ElementSize(call_->dtype));
    pass.output = {call_->dtype, static_cast<char*>(output_) + offset, spec.output_size,
                   spec.value_head_size};
  } else {
    pass.output = {DType::kF32, hidden_[layer_index_ % 2].data() + batch_row * row_elements,
                   spec.output_size, spec.value_head_size};
  }
  for (size_t i = 0; i < call_->stages.size(); ++i) {
    const Stage stage = call_->stages[i];
    const int64_t bytes = StageBytes({&stage, 1}, call_->dtype, 1, spec.head_count, queries_,
                                     KeyCount(spec), spec.value_head_size);
    pass.stages.push_back({stage, StageType(stage, call_->dtype),
                           static_cast<char*>(stage_data_[i]) + batch_row * bytes});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Work>> MakeForwardWork(ForwardCall* call,
                                                      const WorkContext& context) {
  auto work = std::make_unique<ForwardWork>(call, context);
  ATTNSERVE_RETURN_IF_ERROR(work->Check());
  return work;
}

}  // namespace attnserve
