// Reads the tensors of attention layers from a checkpoint.
#ifndef ATTNSERVE_LIB_MODEL_WEIGHT_LOADER_H_
#define ATTNSERVE_LIB_MODEL_WEIGHT_LOADER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/attention/attention_layer.h"
#include "lib/model/model_description.h"
#include "lib/model/safetensors.h"

namespace attnserve {

// Weights of one layer and the memory their views point to.
struct LoadedLayer {
  LayerWeights weights;
  std::vector<LoadedTensor> tensors;
};

// Reads what `sources` names for a layer of `spec` and fills in the factors of its head norms.
// Matrices keep their type and layout and are not copied: parts of a tensor are views of it; a
// tensor that several parts share is read once. NotFound for a tensor the checkpoint lacks;
// InvalidArgument for one that is not F32, F16 or BF16 or has another shape; errors of
// SafetensorsFile::Load.
absl::StatusOr<LoadedLayer> LoadLayer(const SafetensorsFile& file, const LayerSources& sources,
                                      LayerSpec* spec);

// InvalidArgument if a name of `names` (sorted) begins with one of `scopes`, ends with none of
// `ignored_endings` and is not in `sources`: a checkpoint with such a tensor holds an attention
// layer of another kind.
absl::Status RefuseUnusedTensors(absl::Span<const std::string> names,
                                 absl::Span<const std::string> scopes,
                                 absl::Span<const std::string> ignored_endings,
                                 absl::Span<const LayerSources> sources);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_WEIGHT_LOADER_H_
