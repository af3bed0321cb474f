// What a step asks of its layers, and where their results go.
#include "lib/engine/decode_work.h"

namespace attnserve {

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

}  // namespace attnserve
