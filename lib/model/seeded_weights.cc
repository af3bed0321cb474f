#include "lib/model/seeded_weights.h"

#include <cmath>
#include <utility>

namespace attnserve {
namespace {

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;

// Streams of a layer: projections q, k, v, o, then their biases.
constexpr uint64_t kStreamsPerLayer = 8;
constexpr uint64_t kFirstBias = 4;

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::vector<float> Draw(uint64_t seed, uint64_t stream, int64_t count, int64_t in) {
  const double deviation = 1.0 / std::sqrt(static_cast<double>(in));
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(SeededNormal(seed, stream, i) * deviation);
  }
  return values;
}

}  // namespace

double SeededNormal(uint64_t seed, uint64_t stream, uint64_t index) {
  const uint64_t key = Mix(Mix(seed + kGoldenGamma) + kGoldenGamma * (stream + 1));
  int64_t sum = 0;
  for (uint64_t word = 0; word < 3; ++word) {
    uint64_t bits = Mix(key + kGoldenGamma * (3 * index + word + 1));
    for (int part = 0; part < 4; ++part, bits >>= 16) sum += static_cast<int64_t>(bits & 0xffff);
  }
  return static_cast<double>(sum - 6 * 65535) / 65536.0;
}

SeededLayer MakeSeededLayer(const LayerSpec& spec, uint64_t seed, int64_t layer) {
  SeededLayer seeded;
  const uint64_t first_stream = static_cast<uint64_t>(layer) * kStreamsPerLayer;
  const auto project = [&](uint64_t projection, int64_t in, int64_t out, bool has_bias,
                           WeightView* view, std::vector<float>* bias) {
    const uint64_t stream = first_stream + projection;
    seeded.matrices.push_back(Draw(seed, stream, in * out, in));
    *view = {DType::kF32, seeded.matrices.back().data(), in, out, 1, in};
    if (has_bias) *bias = Draw(seed, stream + kFirstBias, out, in);
  };
  LayerWeights& weights = seeded.weights;
  const int64_t context =
      spec.kind == LayerKind::kCrossAttention ? spec.context_size : spec.input_size;
  project(0, spec.input_size, spec.query_width(), spec.query_bias, &weights.query,
          &weights.query_bias);
  project(1, context, spec.key_width(), spec.key_bias, &weights.key, &weights.key_bias);
  project(2, context, spec.value_width(), spec.value_bias, &weights.value, &weights.value_bias);
  if (spec.output_projection) {
    project(3, spec.context_width(), spec.output_size, spec.output_bias, &weights.output,
            &weights.output_bias);
  }
  return seeded;
}

}  // namespace attnserve
