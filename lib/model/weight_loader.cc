#include "lib/model/weight_loader.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "lib/model/json_text.h"

namespace attnserve {
namespace {

class LayerReader {
 public:
  explicit LayerReader(const SafetensorsFile& file) : file_(file) {}

  std::vector<LoadedTensor> TakeTensors() { return std::move(tensors_); }

  // Outputs [first_output, first_output + out) of a matrix.
  absl::Status Matrix(const WeightSource& source, int64_t in, int64_t out, WeightView* view) {
    const bool out_in = source.layout == WeightSource::Layout::kOutIn;
    const Shape shape = out_in ? Shape{source.outputs, in} : Shape{in, source.outputs};
    ATTNSERVE_ASSIGN_OR_RETURN(const TensorView tensor, Read(source.tensor, shape));
    view->dtype = tensor.dtype;
    view->in = in;
    view->out = out;
    view->in_stride = out_in ? 1 : source.outputs;
    view->out_stride = out_in ? in : 1;
    view->data =
        static_cast<const uint8_t*>(tensor.data) +
        static_cast<size_t>(source.first_output * view->out_stride) * ElementSize(tensor.dtype);
    return absl::OkStatus();
  }

  // Elements [first_output, first_output + out) of a bias; none without a tensor.
  absl::Status Bias(const WeightSource& source, int64_t out, std::vector<float>* bias) {
    if (source.tensor.empty()) return absl::OkStatus();
    ATTNSERVE_ASSIGN_OR_RETURN(const TensorView tensor, Read(source.tensor, {source.outputs}));
    bias->resize(static_cast<size_t>(out));
    const size_t offset = static_cast<size_t>(source.first_output) * ElementSize(tensor.dtype);
    LoadAsF32(tensor.dtype, static_cast<const uint8_t*>(tensor.data) + offset, out, bias->data());
    return absl::OkStatus();
  }

  absl::Status Factors(const std::string& name, int64_t size, std::vector<float>* factors) {
    return name.empty() ? absl::OkStatus()
                        : Bias({name, WeightSource::Layout::kOutIn, 0, size}, size, factors);
  }

 private:
  absl::StatusOr<TensorView> Read(const std::string& name, const Shape& shape) {
    const SafetensorsEntry* entry = file_.Find(name);
    if (entry == nullptr) {
      return absl::NotFoundError(absl::StrCat(file_.path(), ": has no tensor ", Quoted(name)));
    }
    const std::string what = absl::StrCat(file_.path(), ": tensor ", Quoted(name));
    if (entry->dtype != "F32" && entry->dtype != "F16" && entry->dtype != "BF16") {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " has dtype ", entry->dtype, "; weights are F32, F16 or BF16"));
    }
    if (!std::equal(shape.begin(), shape.end(), entry->shape.begin(), entry->shape.end())) {
      return absl::InvalidArgumentError(absl::StrCat(what, " has shape [",
                                                     absl::StrJoin(entry->shape, ", "),
                                                     "], expected ", ShapeToString(shape)));
    }
    const auto known = views_.find(name);
    if (known != views_.end()) return known->second;
    ATTNSERVE_ASSIGN_OR_RETURN(LoadedTensor tensor, file_.Load(name));
    const TensorView view = tensor.view;
    tensors_.push_back(std::move(tensor));
    views_[name] = view;
    return view;
  }

  const SafetensorsFile& file_;
  std::vector<LoadedTensor> tensors_;
  std::map<std::string, TensorView> views_;
};

std::set<std::string> UsedNames(absl::Span<const LayerSources> sources) {
  std::set<std::string> used;
  for (const LayerSources& layer : sources) {
    for (const WeightSource* source :
         {&layer.query, &layer.key, &layer.value, &layer.output, &layer.query_bias, &layer.key_bias,
          &layer.value_bias, &layer.output_bias}) {
      used.insert(source->tensor);
    }
    used.insert(layer.query_norm);
    used.insert(layer.key_norm);
  }
  return used;
}

}  // namespace

absl::StatusOr<LoadedLayer> LoadLayer(const SafetensorsFile& file, const LayerSources& sources,
                                      LayerSpec* spec) {
  LayerReader reader(file);
  LoadedLayer layer;
  LayerWeights& weights = layer.weights;
  const int64_t context =
      spec->kind == LayerKind::kCrossAttention ? spec->context_size : spec->input_size;
  ATTNSERVE_RETURN_IF_ERROR(
      reader.Matrix(sources.query, spec->input_size, spec->query_width(), &weights.query));
  ATTNSERVE_RETURN_IF_ERROR(reader.Matrix(sources.key, context, spec->key_width(), &weights.key));
  ATTNSERVE_RETURN_IF_ERROR(
      reader.Matrix(sources.value, context, spec->value_width(), &weights.value));
  if (spec->output_projection) {
    ATTNSERVE_RETURN_IF_ERROR(
        reader.Matrix(sources.output, spec->context_width(), spec->output_size, &weights.output));
  }
  ATTNSERVE_RETURN_IF_ERROR(
      reader.Bias(sources.query_bias, spec->query_width(), &weights.query_bias));
  ATTNSERVE_RETURN_IF_ERROR(reader.Bias(sources.key_bias, spec->key_width(), &weights.key_bias));
  ATTNSERVE_RETURN_IF_ERROR(
      reader.Bias(sources.value_bias, spec->value_width(), &weights.value_bias));
  ATTNSERVE_RETURN_IF_ERROR(
      reader.Bias(sources.output_bias, spec->output_size, &weights.output_bias));
  ATTNSERVE_RETURN_IF_ERROR(
      reader.Factors(sources.query_norm, spec->key_head_size, &spec->attention.query_norm.weight));
  ATTNSERVE_RETURN_IF_ERROR(
      reader.Factors(sources.key_norm, spec->key_head_size, &spec->attention.key_norm.weight));
  layer.tensors = reader.TakeTensors();
  return layer;
}

absl::Status RefuseUnusedTensors(absl::Span<const std::string> names,
                                 absl::Span<const std::string> scopes,
                                 absl::Span<const std::string> ignored_endings,
                                 absl::Span<const LayerSources> sources) {
  const std::set<std::string> used = UsedNames(sources);
  for (const std::string& scope : scopes) {
    for (auto name = std::lower_bound(names.begin(), names.end(), scope);
         name != names.end() && absl::StartsWith(*name, scope); ++name) {
      const bool ignored =
          std::any_of(ignored_endings.begin(), ignored_endings.end(),
                      [name](const std::string& end) { return absl::EndsWith(*name, end); });
      if (ignored || used.count(*name) != 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "the checkpoint has tensor ", Quoted(*name),
          ", for which the described attention layer has no place: it is of another kind"));
    }
  }
  return absl::OkStatus();
}

}  // namespace attnserve
