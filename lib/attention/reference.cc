#include "lib/attention/reference.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <variant>

#include "lib/attention/reference_positions.h"
#include "lib/base/element_type.h"

namespace attnserve::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

size_t At(int64_t index) { return static_cast<size_t>(index); }

// x [rows, in] W [in, out] + bias [out].
Values Project(const Values& x, int64_t in, int64_t out, const Values& weight, const Values& bias) {
  const int64_t rows = static_cast<int64_t>(x.size()) / in;
  Values y(At(rows * out));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias.empty() ? 0.0 : bias[At(o)];
      for (int64_t i = 0; i < in; ++i) sum += x[At(r * in + i)] * weight[At(i * out + o)];
      y[At(r * out + o)] = sum;
    }
  }
  return y;
}

Values WithSinusoids(const LayerSpec& spec, const std::vector<int64_t>& positions, Values x) {
  const auto* sinusoidal = std::get_if<SinusoidalPosition>(&spec.attention.position);
  if (sinusoidal == nullptr) return x;
  const int64_t size = spec.input_size;
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int64_t i = 0; i < size; ++i) {
      x[t * At(size) + At(i)] += SinusoidalElement(sinusoidal->base, size, positions[t], i);
    }
  }
  return x;
}

double Rounded(DType type, double value) {
  switch (type) {
    case DType::kF16:
      return static_cast<double>(F16ToF32(F32ToF16(static_cast<float>(value))));
    case DType::kBF16:
      return static_cast<double>(Bf16ToF32(F32ToBf16(static_cast<float>(value))));
    default:
      return value;
  }
}

// Vectors of `size` elements as a cache of `type` holds them.
Values Cached(DType type, int64_t size, Values vectors) {
  if (type != DType::kI8) {
    for (double& value : vectors) value = Rounded(type, value);
    return vectors;
  }
  for (auto vector = vectors.begin(); vector != vectors.end(); vector += size) {
    double largest = 0.0;
    for (int64_t i = 0; i < size; ++i) largest = std::max(largest, std::fabs(vector[i]));
    const double scale = largest / 127.0;
    for (int64_t i = 0; i < size && scale > 0.0; ++i) {
      vector[i] = std::nearbyint(vector[i] / scale) * scale;
    }
  }
  return vectors;
}

std::vector<int64_t> Indices(int64_t first, int64_t count) {
  std::vector<int64_t> indices(At(count));
  std::iota(indices.begin(), indices.end(), first);
  return indices;
}

// One sequence after projection, norms and rotation, before attention.
struct Sequence {
  int64_t queries = 0;  // T
  int64_t keys = 0;     // S
  Values query;         // [T, H, d_k]
  Values key;           // [S, G, d_k]
  Values value;         // [S, G, d_v]
  std::vector<int64_t> query_positions;
  std::vector<int64_t> key_positions;
  int64_t sink_keys = 0;  // keys before this one are in every window
};

struct NewKeys {
  Values key;
  Values value;
};

NewKeys MakeNewKeys(const LayerSpec& spec, const Weights& weights, const Input& input,
                    const std::vector<int64_t>& positions) {
  if (spec.kind == LayerKind::kCoreAttention) return {input.key, input.value};
  if (input.keys_cached) return {};
  const bool cross = spec.kind == LayerKind::kCrossAttention;
  const int64_t size = cross ? spec.context_size : spec.input_size;
  const Values source = cross ? input.context : WithSinusoids(spec, positions, input.x);
  return {Project(source, size, spec.key_width(), weights.key, weights.key_bias),
          Project(source, size, spec.value_width(), weights.value, weights.value_bias)};
}

int64_t NewKeyCount(const LayerSpec& spec, const Input& input) {
  switch (spec.kind) {
    case LayerKind::kCoreAttention:
      return static_cast<int64_t>(input.key.size()) / spec.key_width();
    case LayerKind::kCrossAttention:
      return static_cast<int64_t>(input.context.size()) / spec.context_size;
    case LayerKind::kSelfAttention:
      return input.keys_cached ? 0 : input.query_count;
  }
  return 0;
}

// Where the first sink_token_count tokens end. Padding is none of them.
int64_t SinkKeys(const LayerSpec& spec, const Input& input, int64_t keys) {
  int64_t key = 0;
  for (int64_t tokens = 0; key < keys && tokens < spec.attention.sink_token_count; ++key) {
    if (input.key_mask.empty() || input.key_mask[At(key)]) ++tokens;
  }
  return key;
}

Sequence MakeSequence(const LayerSpec& spec, const Weights& weights, const Input& input) {
  const AttentionOptions& options = spec.attention;
  const int64_t past = static_cast<int64_t>(input.past_key.size()) / spec.key_width();
  const int64_t added = NewKeyCount(spec, input);
  const auto* rotary = std::get_if<RotaryPosition>(&options.position);

  Sequence sequence;
  sequence.queries = input.query_count;
  sequence.keys = past + added;
  sequence.sink_keys = SinkKeys(spec, input, sequence.keys);
  sequence.query_positions = !input.query_positions.empty()
                                 ? input.query_positions
                                 : Indices(input.causal_offset, input.query_count);
  sequence.key_positions = !input.past_positions.empty() ? input.past_positions : Indices(0, past);
  const std::vector<int64_t> new_positions =
      !input.key_positions.empty() ? input.key_positions : Indices(past, added);
  sequence.key_positions.insert(sequence.key_positions.end(), new_positions.begin(),
                                new_positions.begin() + added);

  sequence.query =
      spec.kind == LayerKind::kCoreAttention
          ? input.query
          : Project(WithSinusoids(spec, sequence.query_positions, input.x), spec.input_size,
                    spec.query_width(), weights.query, weights.query_bias);
  NewKeys fresh = MakeNewKeys(spec, weights, input, new_positions);
  ApplyHeadNorm(options.query_norm, spec.key_head_size, &sequence.query);
  ApplyHeadNorm(options.key_norm, spec.key_head_size, &fresh.key);
  if (rotary != nullptr) {
    ApplyRotary(*rotary, sequence.query_positions, spec.head_count, spec.key_head_size,
                &sequence.query);
    ApplyRotary(*rotary, new_positions, spec.kv_head_count, spec.key_head_size, &fresh.key);
  }
  sequence.key = input.past_key;
  sequence.value = input.past_value;
  const Values keys = Cached(spec.cache_dtype, spec.key_head_size, std::move(fresh.key));
  const Values values = Cached(spec.cache_dtype, spec.value_head_size, std::move(fresh.value));
  sequence.key.insert(sequence.key.end(), keys.begin(), keys.end());
  sequence.value.insert(sequence.value.end(), values.begin(), values.end());
  return sequence;
}

bool Visible(const LayerSpec& spec, const Input& input, const Sequence& sequence, int64_t head,
             int64_t query, int64_t key) {
  const AttentionOptions& options = spec.attention;
  if (!input.query_padding.empty() && input.query_padding[At(query)]) return false;
  if (options.causal && key > input.causal_offset + query) return false;
  if (input.valid_keys >= 0 && key >= input.valid_keys) return false;
  if (!input.key_mask.empty() && !input.key_mask[At(key)]) return false;

  const int64_t distance = sequence.key_positions[At(key)] - sequence.query_positions[At(query)];
  const Window& window = options.window;
  const bool outside = (window.left >= 0 && distance < -window.left) ||
                       (window.right >= 0 && distance > window.right);
  if (outside && key >= sequence.sink_keys) return false;

  const int64_t first_new = sequence.keys - sequence.queries;
  if (!input.tree_mask.empty() && key >= first_new &&
      !input.tree_mask[At(query * sequence.queries + key - first_new)]) {
    return false;
  }
  const size_t place = At((head * sequence.queries + query) * sequence.keys + key);
  if (!input.bool_mask.empty() && !input.bool_mask[place]) return false;
  return input.additive_mask.empty() || input.additive_mask[place] != -kInfinity;
}

double Scale(const LayerSpec& spec) {
  if (spec.attention.scale.has_value()) return static_cast<double>(*spec.attention.scale);
  return 1.0 / std::sqrt(static_cast<double>(spec.key_head_size));
}

// Fills scores, softcapped and masked, [H, T, S].
void Score(const LayerSpec& spec, const Input& input, const Sequence& sequence, Output* out) {
  const AttentionOptions& options = spec.attention;
  const double scale = Scale(spec);
  const double softcap = static_cast<double>(options.softcap);
  const auto* alibi = std::get_if<AlibiPosition>(&options.position);
  const std::vector<double> slopes = alibi != nullptr
                                         ? AlibiSlopesOf(*alibi, spec.head_count)
                                         : std::vector<double>(At(spec.head_count), 0.0);
  const int64_t size = spec.key_head_size;
  for (int64_t h = 0; h < spec.head_count; ++h) {
    const int64_t g = h / (spec.head_count / spec.kv_head_count);
    for (int64_t i = 0; i < sequence.queries; ++i) {
      for (int64_t j = 0; j < sequence.keys; ++j) {
        double dot = 0.0;
        for (int64_t e = 0; e < size; ++e) {
          dot += sequence.query[At((i * spec.head_count + h) * size + e)] *
                 sequence.key[At((j * spec.kv_head_count + g) * size + e)];
        }
        const double score = dot * scale;
        const double capped = softcap > 0.0 ? softcap * std::tanh(score / softcap) : score;
        out->scores.push_back(score);
        out->softcapped.push_back(capped);
        if (!Visible(spec, input, sequence, h, i, j)) {
          out->masked.push_back(-kInfinity);
          continue;
        }
        const double distance = static_cast<double>(
            std::abs(sequence.query_positions[At(i)] - sequence.key_positions[At(j)]));
        const double bias =
            input.additive_mask.empty() ? 0.0 : input.additive_mask[out->masked.size()];
        out->masked.push_back(capped + bias - slopes[At(h)] * distance);
      }
    }
  }
}

struct RowMaximum {
  double value = -kInfinity;
  bool any = false;  // whether the row attends anything
};

RowMaximum MaximumOf(const double* masked, int64_t keys) {
  RowMaximum maximum;
  for (int64_t j = 0; j < keys; ++j) {
    maximum.any |= masked[j] != -kInfinity;
    if (std::isnan(masked[j]) || masked[j] > maximum.value) maximum.value = masked[j];
    if (std::isnan(masked[j])) break;
  }
  return maximum;
}

// One row of weights before dropout [S]; returns the row's LSE.
double SoftmaxRow(const double* masked, int64_t keys, double sink_logit, double* weights) {
  const RowMaximum maximum = MaximumOf(masked, keys);
  if (!maximum.any) return -kInfinity;
  const double top = std::fmax(sink_logit, maximum.value);
  double sum = sink_logit == -kInfinity ? 0.0 : std::exp(sink_logit - top);
  for (int64_t j = 0; j < keys; ++j) {
    weights[j] = masked[j] == -kInfinity ? 0.0 : std::exp(masked[j] - top);
    sum += weights[j];
  }
  for (int64_t j = 0; j < keys; ++j) {
    if (masked[j] != -kInfinity) weights[j] /= sum;
  }
  return top + std::log(sum);
}

// Fills weights [H, T, S], lse [H, T] and context [H, T, d_v].
void Attend(const LayerSpec& spec, const Input& input, const Sequence& sequence, Output* out) {
  const std::vector<float>& sinks = spec.attention.sink_logits;
  const int64_t size = spec.value_head_size;
  out->weights.assign(out->masked.size(), 0.0);
  for (int64_t h = 0; h < spec.head_count; ++h) {
    const int64_t g = h / (spec.head_count / spec.kv_head_count);
    const double sink = sinks.empty() ? -kInfinity : static_cast<double>(sinks[At(h)]);
    for (int64_t i = 0; i < sequence.queries; ++i) {
      const int64_t row = (h * sequence.queries + i) * sequence.keys;
      const double* masked = out->masked.data() + row;
      double* weights = out->weights.data() + row;
      out->lse.push_back(SoftmaxRow(masked, sequence.keys, sink, weights));
      // A NaN among the scores reaches the context even where dropout spares no weight.
      Values context(At(size), std::isnan(out->lse.back()) ? kNan : 0.0);
      for (int64_t j = 0; j < sequence.keys; ++j) {
        if (masked[j] == -kInfinity) continue;
        if (input.dropped != nullptr) {
          const bool dropped = input.dropped(h, i, j);
          weights[j] = dropped ? 0.0 : weights[j] / (1.0 - input.dropout_p);
          if (dropped) continue;
        }
        for (int64_t e = 0; e < size; ++e) {
          context[At(e)] +=
              weights[j] * sequence.value[At((j * spec.kv_head_count + g) * size + e)];
        }
      }
      out->context.insert(out->context.end(), context.begin(), context.end());
    }
  }
}

// [H, T, d_v] to [T, H, d_v].
Values TokenMajor(const Values& context, int64_t heads, int64_t tokens, int64_t size) {
  Values rows(context.size());
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t e = 0; e < size; ++e) {
        rows[At((t * heads + h) * size + e)] = context[At((h * tokens + t) * size + e)];
      }
    }
  }
  return rows;
}

}  // namespace

Output Run(const LayerSpec& spec, const Weights& weights, const Input& input) {
  Output out;
  const Sequence sequence = MakeSequence(spec, weights, input);
  Score(spec, input, sequence, &out);
  Attend(spec, input, sequence, &out);
  out.output = TokenMajor(out.context, spec.head_count, sequence.queries, spec.value_head_size);
  if (spec.output_projection) {
    out.output = Project(out.output, spec.context_width(), spec.output_size, weights.output,
                         weights.output_bias);
  }
  for (int64_t t = 0; t < sequence.queries && !input.query_padding.empty(); ++t) {
    if (!input.query_padding[At(t)]) continue;
    const int64_t width = static_cast<int64_t>(out.output.size()) / sequence.queries;
    for (int64_t o = 0; o < width; ++o) out.output[At(t * width + o)] = 0.0;
  }
  out.query = sequence.query;
  out.present_key = sequence.key;
  out.present_value = sequence.value;
  return out;
}

}  // namespace attnserve::reference
