// Models described by a file model.textproto.
#ifndef ATTNSERVE_LIB_MODEL_MODEL_CONFIG_H_
#define ATTNSERVE_LIB_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "lib/model/model_description.h"

namespace attnserve {

// What a model.textproto says.
struct ModelConfigDescription {
  ModelDescription model;   // sources: layers.N.{q,k,v,o}_proj.{weight,bias}, [out, in]
  std::string safetensors;  // name of a file beside the description; empty: weights from `seed`
  uint64_t seed = 0;
};

// Parses `text`, an attnserve.v1.ModelConfig in protobuf's text format, and checks all it says.
// InvalidArgument gives line and column, or the field, for example "layers[2].head_count".
absl::StatusOr<ModelConfigDescription> ParseModelConfig(std::string_view text);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_MODEL_CONFIG_H_
