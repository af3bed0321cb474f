// A served model: attention layers with their weights, loaded once.
#ifndef ATTNSERVE_LIB_MODEL_MODEL_H_
#define ATTNSERVE_LIB_MODEL_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/attention/attention_layer.h"
#include "lib/base/element_type.h"
#include "lib/gemm/packed_matrix.h"

namespace attnserve {

// Most layers of one model.
inline constexpr int64_t kMaxLayers = 1024;

// Immutable; any number of threads may use it.
class Model {
 public:
  // `name` has passed CheckModelName. There is at least one layer and none of them is null or core
  // attention.
  Model(std::string name, std::string format, std::vector<std::unique_ptr<AttentionLayer>> layers,
        int64_t max_tokens, DType weight_dtype);

  const std::string& name() const { return name_; }
  // "llama", "mistral", "qwen2", "qwen3", "gpt2", "bert" or "model.textproto".
  const std::string& format() const { return format_; }

  int64_t layer_count() const { return static_cast<int64_t>(layers_.size()); }
  const std::vector<std::unique_ptr<AttentionLayer>>& layers() const { return layers_; }
  // `index` in [0, layer_count()).
  const AttentionLayer& layer(int64_t index) const { return *layers_[static_cast<size_t>(index)]; }

  // Longest sequence; 0: no limit.
  int64_t max_tokens() const { return max_tokens_; }
  // Element type of the projections in the file; F32 where they differ.
  DType weight_dtype() const { return weight_dtype_; }
  // Bytes of packed weights in memory.
  int64_t weight_bytes() const { return weight_bytes_; }
  // Whether all layers may run in order: d_out(l) == d_in(l + 1) for each but the last.
  bool chains() const { return chains_; }

 private:
  std::string name_;
  std::string format_;
  std::vector<std::unique_ptr<AttentionLayer>> layers_;
  int64_t max_tokens_;
  DType weight_dtype_;
  int64_t weight_bytes_ = 0;
  bool chains_ = true;
};

// InvalidArgument unless `name` has 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'.
absl::Status CheckModelName(std::string_view name);

// Loads a model from `path`:
//   a folder with config.json        Hugging Face layout, see hugging_face.h. The weights are
//                                    model.safetensors, or model.safetensors.index.json and the
//                                    files it names
//   a folder with model.textproto,   attention layers described by attnserve.v1.ModelConfig, see
//   or such a file itself            model_config.h
// Errors, which name the file and what is wrong with it: NotFound (a file or a tensor is missing),
// InvalidArgument (it is malformed, contradicts itself, or describes something that is not
// supported), DataLoss (it shrank while it was read), ResourceExhausted (memory), those of
// AttentionLayer::Create. They carry no ErrorDetail: they happen before anything is served.
absl::StatusOr<std::shared_ptr<const Model>> LoadModel(const std::string& name,
                                                       const std::string& path,
                                                       GemmBackend backend);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_MODEL_H_
