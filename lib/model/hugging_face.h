// Attention layers of checkpoints in the layout of Hugging Face transformers.
//
// Supported "model_type"s, and the tensors of layer N (also without the first part of the name):
//   llama, mistral, qwen2, qwen3  model.layers.N.self_attn.{q,k,v,o}_proj.{weight,bias},
//                                 {q,k}_norm.weight (qwen3)
//   gpt2                          transformer.h.N.attn.{c_attn,c_proj}.{weight,bias}, stored
//                                 [in, out], c_attn being q, k and v side by side
//   bert                          bert.encoder.layer.N.attention.self.{query,key,value} and
//                                 .attention.output.dense, each .{weight,bias}
// Keys that are missing from config.json have the defaults of transformers. Learned positions,
// norms between layers and feed-forward layers stay with the client.
//
// A window of W tokens counts the token itself: left = W - 1. The longest sequence is
// max_position_embeddings; rotary scaling of type linear, dynamic and yarn multiplies it by the
// factor, as those types exist to go beyond the trained length.
//
// What would change attention in a way that is not supported is refused by name: other model
// types, other rotary types, quantisation, code of the checkpoint's own (auto_map), any key that
// speaks of attention and is not known for the model type, any tensor of an attention layer that
// has no place in it.
#ifndef ATTNSERVE_LIB_MODEL_HUGGING_FACE_H_
#define ATTNSERVE_LIB_MODEL_HUGGING_FACE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/model/model_description.h"

namespace attnserve {

// Describes the attention layers of a checkpoint: `config` is the text of config.json,
// `tensor_names` the names of all its tensors, sorted. InvalidArgument names the key or the tensor,
// what it is and what is supported. That every tensor exists and has the right size is checked
// when it is loaded.
absl::StatusOr<ModelDescription> DescribeHuggingFaceModel(
    std::string_view config, absl::Span<const std::string> tensor_names);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_HUGGING_FACE_H_
