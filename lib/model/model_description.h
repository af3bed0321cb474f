// What a model consists of, before its weights are read.
#ifndef ATTNSERVE_LIB_MODEL_MODEL_DESCRIPTION_H_
#define ATTNSERVE_LIB_MODEL_MODEL_DESCRIPTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lib/attention/layer_spec.h"

namespace attnserve {

// Where a projection's matrix or bias lies in a checkpoint: some outputs of a tensor.
struct WeightSource {
  enum class Layout {
    kOutIn,  // [out, in], a torch.nn.Linear
    kInOut,  // [in, out], a Conv1D of GPT-2
  };
  std::string tensor;  // empty: the layer has none
  Layout layout = Layout::kOutIn;
  int64_t first_output = 0;  // the first of the tensor's outputs that is meant
  int64_t outputs = 0;       // all outputs of the tensor
};

// The tensors of one layer.
struct LayerSources {
  WeightSource query, key, value, output;
  WeightSource query_bias, key_bias, value_bias, output_bias;
  std::string query_norm, key_norm;  // factors [d_k]; empty: none
};

struct ModelDescription {
  std::string format;
  int64_t max_tokens = 0;         // 0: no limit
  std::vector<LayerSpec> layers;  // completed; factors of head norms are still in the checkpoint
  std::vector<LayerSources> sources;  // one per layer
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_MODEL_DESCRIPTION_H_
