#include "lib/attention/attention_layer.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/attention/attention_layer_impl.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/simd/vector_ops.h"

namespace attnserve {
namespace {

absl::Status CheckWeight(std::string_view name, const WeightView& weight, int64_t in, int64_t out) {
  if (weight.data != nullptr && weight.in == in && weight.out == out) return absl::OkStatus();
  return BadShape(name, absl::StrCat("came as [out, in] = [", weight.out, ", ", weight.in,
                                     "]; expected [", out, ", ", in, "]"));
}

absl::Status CheckBias(std::string_view name, const std::vector<float>& bias, bool wanted,
                       int64_t size) {
  const size_t expected = wanted ? static_cast<size_t>(size) : 0;
  if (bias.size() == expected) return absl::OkStatus();
  return BadShape(name, absl::StrCat("came with ", bias.size(), " elements; expected ", expected));
}

absl::Status OutOfMemory() { return KernelFailure("out of memory for an attention layer"); }

// Biases of keys and values side by side; empty if neither has one.
std::vector<float> JoinBiases(const LayerSpec& spec, const LayerWeights& weights) {
  if (!spec.key_bias && !spec.value_bias) return {};
  std::vector<float> joined(static_cast<size_t>(spec.key_width() + spec.value_width()), 0.0f);
  std::copy(weights.key_bias.begin(), weights.key_bias.end(), joined.begin());
  std::copy(weights.value_bias.begin(), weights.value_bias.end(),
            joined.begin() + spec.key_width());
  return joined;
}

}  // namespace

AttentionLayer::AttentionLayer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AttentionLayer::~AttentionLayer() = default;

absl::StatusOr<std::unique_ptr<AttentionLayer>> AttentionLayer::CreateCore(
    const LayerSpec& spec) try {
  auto impl = std::make_unique<Impl>();
  impl->spec = spec;
  impl->scale = ScoreScale(spec.attention, spec.key_head_size);
  if (const auto* rotary = std::get_if<RotaryPosition>(&spec.attention.position)) {
    impl->rotary.emplace(*rotary, spec.key_head_size);
  }
  if (const auto* sinusoidal = std::get_if<SinusoidalPosition>(&spec.attention.position)) {
    impl->sinusoids.emplace(sinusoidal->base, spec.input_size);
  }
  return std::unique_ptr<AttentionLayer>(new AttentionLayer(std::move(impl)));
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

absl::StatusOr<std::unique_ptr<AttentionLayer>> AttentionLayer::Create(const LayerSpec& spec,
                                                                       const LayerWeights& weights,
                                                                       GemmBackend backend) try {
  const int64_t kv_in =
      spec.kind == LayerKind::kCrossAttention ? spec.context_size : spec.input_size;
  ATTNSERVE_RETURN_IF_ERROR(
      CheckWeight("query", weights.query, spec.input_size, spec.query_width()));
  ATTNSERVE_RETURN_IF_ERROR(CheckWeight("key", weights.key, kv_in, spec.key_width()));
  ATTNSERVE_RETURN_IF_ERROR(CheckWeight("value", weights.value, kv_in, spec.value_width()));
  if (spec.output_projection) {
    ATTNSERVE_RETURN_IF_ERROR(
        CheckWeight("output", weights.output, spec.context_width(), spec.output_size));
  }
  ATTNSERVE_RETURN_IF_ERROR(
      CheckBias("query_bias", weights.query_bias, spec.query_bias, spec.query_width()));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckBias("key_bias", weights.key_bias, spec.key_bias, spec.key_width()));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckBias("value_bias", weights.value_bias, spec.value_bias, spec.value_width()));
  ATTNSERVE_RETURN_IF_ERROR(
      CheckBias("output_bias", weights.output_bias, spec.output_bias, spec.output_size));

  ATTNSERVE_ASSIGN_OR_RETURN(std::unique_ptr<AttentionLayer> layer, CreateCore(spec));
  Impl& impl = *layer->impl_;
  ATTNSERVE_ASSIGN_OR_RETURN(impl.query,
                             PackedMatrix::Create({weights.query}, weights.query_bias, backend));
  ATTNSERVE_ASSIGN_OR_RETURN(
      impl.key_value,
      PackedMatrix::Create({weights.key, weights.value}, JoinBiases(spec, weights), backend));
  if (spec.output_projection) {
    ATTNSERVE_ASSIGN_OR_RETURN(
        impl.output, PackedMatrix::Create({weights.output}, weights.output_bias, backend));
  }
  return layer;
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

const LayerSpec& AttentionLayer::spec() const { return impl_->spec; }

int64_t AttentionLayer::weight_bytes() const {
  int64_t bytes = 0;
  for (const PackedMatrix* matrix : impl_->matrices()) {
    if (matrix != nullptr) bytes += matrix->bytes();
  }
  return bytes;
}

bool AttentionLayer::uses_onednn() const {
  const auto matrices = impl_->matrices();
  return std::any_of(matrices.begin(), matrices.end(), [](const PackedMatrix* matrix) {
    return matrix != nullptr && matrix->uses_onednn();
  });
}

KvLayout AttentionLayer::kv_layout() const {
  const LayerSpec& spec = impl_->spec;
  return {spec.kv_head_count, spec.key_head_size, spec.value_head_size, spec.cache_dtype};
}

int64_t AttentionLayer::key_rows(const LayerPass& pass) const {
  if (impl_->is_core()) return pass.key.tokens;
  return impl_->is_cross() ? pass.context.rows : pass.x.rows;
}

int64_t AttentionLayer::query_rows(const LayerPass& pass) const {
  return impl_->is_core() ? pass.query.tokens : pass.x.rows;
}

LayerWorkspace::LayerWorkspace() : impl_(std::make_unique<Impl>()) {}
LayerWorkspace::~LayerWorkspace() = default;

void MakeChunks(absl::Span<const PassRows> ranges, int64_t width, LayerWorkspace::Impl* workspace) {
  // Some 10 us of copying: less is not worth a task of its own.
  constexpr int64_t kChunkElements = 1 << 15;
  const int64_t chunk_rows = std::max<int64_t>(16, kChunkElements / width);
  workspace->chunks.clear();
  workspace->row_count = 0;
  for (const PassRows& range : ranges) {
    for (int64_t begin = range.begin; begin < range.end; begin += chunk_rows) {
      const int64_t end = std::min(range.end, begin + chunk_rows);
      workspace->chunks.push_back({range.pass, begin, end, workspace->row_count});
      workspace->row_count += end - begin;
    }
  }
}

void GatherHeads(const HeadsView& view, int64_t begin, int64_t end, int64_t stride, float* target) {
  const int64_t element = static_cast<int64_t>(ElementSize(view.dtype));
  for (int64_t token = begin; token < end; ++token, target += stride) {
    for (int64_t head = 0; head < view.heads; ++head) {
      const int64_t at = token * view.token_stride + head * view.head_stride;
      simd::Widen(view.dtype, static_cast<const char*>(view.data) + at * element, view.size,
                  target + head * view.size);
    }
  }
}

const float* ProjectionInputs(absl::Span<const PassRows> ranges, int64_t width,
                              absl::FunctionRef<ProjectionInput(const LayerPass&)> input_of,
                              ParallelRunner& runner, LayerWorkspace::Impl& work) {
  if (ranges.size() == 1) {
    const ProjectionInput only = input_of(*ranges[0].pass);
    if (only.sinusoids == nullptr && AreFloats(only.rows.dtype, only.rows.data)) {
      return static_cast<const float*>(only.rows.data) + ranges[0].begin * width;
    }
  }
  float* const x = work.x.Reserve(static_cast<size_t>(work.row_count * width));
  const auto gather = [&](int64_t task, int) {
    const RowChunk& chunk = work.chunks[static_cast<size_t>(task)];
    const ProjectionInput input = input_of(*chunk.pass);
    const int64_t offset =
        chunk.begin * width * static_cast<int64_t>(ElementSize(input.rows.dtype));
    float* row = x + chunk.row * width;
    simd::Widen(input.rows.dtype, static_cast<const char*>(input.rows.data) + offset,
                (chunk.end - chunk.begin) * width, row);
    if (input.sinusoids == nullptr) return;
    for (int64_t token = chunk.begin; token < chunk.end; ++token, row += width) {
      input.sinusoids->Add(PositionOf(input.positions, input.position_base, token), row);
    }
  };
  RunTasks(runner, static_cast<int64_t>(work.chunks.size()), work.row_count * width, gather);
  return x;
}

void PrepareHeads(const AttentionLayer::Impl& layer, const HeadNorm& norm, int64_t position,
                  int64_t heads, float* vectors) {
  const int64_t size = layer.spec.key_head_size;
  if (norm.kind != HeadNorm::Kind::kNone) {
    for (int64_t head = 0; head < heads; ++head) {
      float* vector = vectors + head * size;
      simd::Normalize(vector, size, norm.kind == HeadNorm::Kind::kLayer, norm.epsilon,
                      norm.weight.empty() ? nullptr : norm.weight.data(),
                      norm.bias.empty() ? nullptr : norm.bias.data(), vector);
    }
  }
  if (!layer.rotary.has_value()) return;
  constexpr int64_t kMostPairs = kMaxHeadSize / 2;
  alignas(kKernelAlignment) float cosine[kMostPairs], sine[kMostPairs];
  layer.rotary->At(position, cosine, sine);
  for (int64_t head = 0; head < heads; ++head) {
    simd::Rotate(vectors + head * size, layer.rotary->dimension(), layer.rotary->interleaved(),
                 cosine, sine);
  }
}

}  // namespace attnserve
