#include <filesystem>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/model/hugging_face.h"
#include "lib/model/model.h"
#include "lib/model/model_config.h"
#include "lib/model/path_names.h"
#include "lib/model/read_only_file.h"
#include "lib/model/safetensors.h"
#include "lib/model/seeded_weights.h"
#include "lib/model/weight_loader.h"

namespace attnserve {
namespace {

constexpr char kHuggingFaceConfig[] = "config.json";
constexpr char kModelConfig[] = "model.textproto";
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool IsFolder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

std::string Join(const std::string& folder, const std::string& file) {
  return (std::filesystem::path(folder) / file).string();
}

// Collects the layers of a model that is being loaded.
class ModelBuilder {
 public:
  ModelBuilder(std::string name, const ModelDescription& description, GemmBackend backend)
      : name_(std::move(name)), description_(description), backend_(backend) {}

  absl::Status Add(const LayerSpec& spec, const LayerWeights& weights) {
    absl::StatusOr<std::unique_ptr<AttentionLayer>> layer =
        AttentionLayer::Create(spec, weights, backend_);
    if (!layer.ok()) return WithPath(absl::StrCat("layer ", layers_.size()), layer.status());
    layers_.push_back(*std::move(layer));
    NoteDType(weights.query);
    NoteDType(weights.key);
    NoteDType(weights.value);
    if (weights.output.data != nullptr) NoteDType(weights.output);
    return absl::OkStatus();
  }

  std::shared_ptr<const Model> Build() {
    return std::make_shared<const Model>(std::move(name_), description_.format, std::move(layers_),
                                         description_.max_tokens, dtype_.value_or(DType::kF32));
  }

 private:
  void NoteDType(const WeightView& view) {
    const DType seen = dtype_.value_or(view.dtype);
    dtype_ = seen == view.dtype ? seen : DType::kF32;
  }

  std::string name_;
  const ModelDescription& description_;
  const GemmBackend backend_;
  std::vector<std::unique_ptr<AttentionLayer>> layers_;
  std::optional<DType> dtype_;
};

absl::StatusOr<std::shared_ptr<const Model>> LoadFromFile(const std::string& name,
                                                          const ModelDescription& description,
                                                          const SafetensorsFile& file,
                                                          GemmBackend backend) {
  ModelBuilder builder(name, description, backend);
  for (size_t i = 0; i < description.layers.size(); ++i) {
    LayerSpec spec = description.layers[i];
    ATTNSERVE_ASSIGN_OR_RETURN(const LoadedLayer layer,
                               LoadLayer(file, description.sources[i], &spec));
    ATTNSERVE_RETURN_IF_ERROR(builder.Add(spec, layer.weights));
  }
  return builder.Build();
}

absl::StatusOr<std::shared_ptr<const Model>> LoadFromSeed(const std::string& name,
                                                          const ModelDescription& description,
                                                          uint64_t seed, GemmBackend backend) {
  ModelBuilder builder(name, description, backend);
  for (size_t i = 0; i < description.layers.size(); ++i) {
    const LayerSpec& spec = description.layers[i];
    const SeededLayer layer = MakeSeededLayer(spec, seed, static_cast<int64_t>(i));
    ATTNSERVE_RETURN_IF_ERROR(builder.Add(spec, layer.weights));
  }
  return builder.Build();
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenHuggingFaceWeights(const std::string& folder) {
  for (const char* file : {"model.safetensors", "model.safetensors.index.json"}) {
    const std::string path = Join(folder, file);
    if (Exists(path)) return SafetensorsFile::Open(path);
  }
  return absl::NotFoundError(absl::StrCat(
      folder, ": has neither model.safetensors nor model.safetensors.index.json; weights in other ",
      "formats (pytorch_model.bin, ...) have to be converted"));
}

absl::StatusOr<std::shared_ptr<const Model>> LoadHuggingFace(const std::string& name,
                                                             const std::string& folder,
                                                             GemmBackend backend) {
  const std::string path = Join(folder, kHuggingFaceConfig);
  ATTNSERVE_ASSIGN_OR_RETURN(const std::string config, ReadTextFile(path, kMaxConfigBytes));
  ATTNSERVE_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file,
                             OpenHuggingFaceWeights(folder));
  const absl::StatusOr<ModelDescription> description =
      DescribeHuggingFaceModel(config, file->names());
  if (!description.ok()) return WithPath(path, description.status());
  return LoadFromFile(name, *description, *file, backend);
}

absl::StatusOr<std::shared_ptr<const Model>> LoadModelConfig(const std::string& name,
                                                             const std::string& path,
                                                             GemmBackend backend) {
  ATTNSERVE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  const absl::StatusOr<ModelConfigDescription> config = ParseModelConfig(text);
  if (!config.ok()) return WithPath(path, config.status());
  if (config->safetensors.empty()) {
    return LoadFromSeed(name, config->model, config->seed, backend);
  }
  const std::string weights =
      std::filesystem::path(path).replace_filename(config->safetensors).string();
  ATTNSERVE_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file,
                             SafetensorsFile::Open(weights));
  std::vector<std::string> scopes;
  for (size_t i = 0; i < config->model.layers.size(); ++i) {
    scopes.push_back(absl::StrCat("layers.", i, "."));
  }
  const absl::Status unused = RefuseUnusedTensors(file->names(), scopes, {}, config->model.sources);
  if (!unused.ok()) return WithPath(weights, unused);
  return LoadFromFile(name, config->model, *file, backend);
}

absl::StatusOr<std::shared_ptr<const Model>> LoadFolder(const std::string& name,
                                                        const std::string& folder,
                                                        GemmBackend backend) {
  const bool hugging_face = Exists(Join(folder, kHuggingFaceConfig));
  const bool model_config = Exists(Join(folder, kModelConfig));
  if (hugging_face && model_config) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": has both ", kHuggingFaceConfig, " and ", kModelConfig, "; name ",
                     Join(folder, kModelConfig), " itself, or remove one of them"));
  }
  if (hugging_face) return LoadHuggingFace(name, folder, backend);
  if (model_config) return LoadModelConfig(name, Join(folder, kModelConfig), backend);
  return absl::NotFoundError(absl::StrCat(folder, ": has neither ", kHuggingFaceConfig,
                                          " (Hugging Face) nor ", kModelConfig));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Model>> LoadModel(const std::string& name,
                                                       const std::string& path,
                                                       GemmBackend backend) {
  ATTNSERVE_RETURN_IF_ERROR(CheckModelName(name));
  try {
    if (IsFolder(path)) return LoadFolder(name, path, backend);
    if (absl::EndsWith(path, ".textproto")) return LoadModelConfig(name, path, backend);
    if (Exists(path)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": is neither a folder nor a .textproto file; name the folder of the checkpoint"));
    }
    return absl::NotFoundError(absl::StrCat(path, ": does not exist"));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": there is not enough memory to load the model"));
  }
}

}  // namespace attnserve
