// The client's half of a Llama-style language model: all but attention.
#ifndef ATTNSERVE_CLIENT_ATTNCTL_LLAMA_H_
#define ATTNSERVE_CLIENT_ATTNCTL_LLAMA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace attnserve::ctl {

using Floats = std::vector<float>;

// Sizes of the model, from config.json.
struct LlamaConfig {
  int64_t hidden_size = 0;        // d
  int64_t intermediate_size = 0;  // f
  int64_t layer_count = 0;
  int64_t head_count = 0;     // of attention, to compare with what is served
  int64_t kv_head_count = 0;  // divides head_count
  int64_t head_size = 0;
  int64_t vocab_size = 0;  // v
  int64_t max_tokens = 0;
  float rms_norm_eps = 0.0f;
  bool tie_word_embeddings = false;
};

// Embeddings, RMS norms, SwiGLU and the head, in F32. Immutable.
class Llama {
 public:
  // What stands in for attention: (layer, normed x [T, d]) -> its output [T, d], without residual.
  using Attention =
      absl::FunctionRef<absl::StatusOr<Floats>(int64_t layer, const Floats& x, int64_t tokens)>;

  // Reads config.json and model.safetensors (or its index) of a Hugging Face folder.
  static absl::StatusOr<Llama> Load(const std::string& folder);

  const LlamaConfig& config() const { return config_; }

  // Logits [v] that follow the last of `tokens`.
  absl::StatusOr<Floats> Run(absl::Span<const int> tokens, Attention attention) const;

 private:
  struct Layer {
    Floats attention_norm;  // [d]
    Floats ffn_norm;        // [d]
    Floats gate;            // [f, d]
    Floats up;              // [f, d]
    Floats down;            // [d, f]
  };
  void FeedForward(const Layer& layer, float* x) const;  // x [d], in place, with residual

  LlamaConfig config_;
  Floats embeddings_;  // [v, d]
  Floats final_norm_;  // [d]
  Floats head_;        // [v, d]; empty: the embeddings
  std::vector<Layer> layers_;
};

}  // namespace attnserve::ctl

#endif  // ATTNSERVE_CLIENT_ATTNCTL_LLAMA_H_
