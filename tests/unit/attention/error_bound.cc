#include "tests/unit/attention/error_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>
#include <vector>

#include "lib/attention/reference_positions.h"
#include "lib/simd/kv_layout.h"

namespace attnserve {
namespace {

using reference::Values;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Below this float32 is subnormal and errors are absolute.
constexpr double kSmallest = 0x1p-126;
// e^x counts as 0 where it is less (lib/simd/vector_ops.h: below x = -87.3).
const double kLeastWeight = std::exp(-87.3);

size_t At(int64_t index) { return static_cast<size_t>(index); }

struct Approx {
  Values value;
  Values error;
};

Approx Given(const Values& value, double relative) {
  Approx result{value, value};
  for (double& error : result.error) error = std::fabs(error) * relative;
  return result;
}

Approx Project(const Approx& x, int64_t in, int64_t out, const Values& weight, const Values& bias,
               double unit) {
  const int64_t rows = static_cast<int64_t>(x.value.size()) / in;
  Approx y{Values(At(rows * out)), Values(At(rows * out))};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0.0;
      double absolute = 0.0;
      double inherited = 0.0;
      for (int64_t i = 0; i < in; ++i) {
        const double w = weight[At(i * out + o)];
        sum += x.value[At(r * in + i)] * w;
        absolute += std::fabs(x.value[At(r * in + i)] * w);
        inherited += x.error[At(r * in + i)] * std::fabs(w);
      }
      const size_t at = At(r * out + o);
      y.value[at] = sum + (bias.empty() ? 0.0 : bias[At(o)]);
      y.error[at] = inherited + static_cast<double>(in) * unit * absolute +
                    (bias.empty() ? 0.0 : unit * std::fabs(y.value[at])) + kSmallest;
    }
  }
  return y;
}

void AddSinusoids(const LayerSpec& spec, const std::vector<int64_t>& positions, double unit,
                  Approx* x) {
  const auto* sinusoidal = std::get_if<SinusoidalPosition>(&spec.attention.position);
  if (sinusoidal == nullptr) return;
  const int64_t size = spec.input_size;
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int64_t i = 0; i < size; ++i) {
      const size_t at = t * At(size) + At(i);
      const double wave = reference::SinusoidalElement(sinusoidal->base, size, positions[t], i);
      x->value[at] += wave;
      x->error[at] += unit * (std::fabs(wave) + std::fabs(x->value[at]));
    }
  }
}

// y = (x - mean) / deviation * weight + bias. The deviation's relative error is half of the
// variance's, over what the variance may have shrunk to.
void Normalize(const HeadNorm& norm, int64_t size, double unit, Approx* heads) {
  if (norm.kind == HeadNorm::Kind::kNone) return;
  const bool centered = norm.kind == HeadNorm::Kind::kLayer;
  const double count = static_cast<double>(size);
  const double epsilon = static_cast<double>(norm.epsilon);
  for (size_t begin = 0; begin < heads->value.size(); begin += At(size)) {
    double* x = heads->value.data() + begin;
    double* error = heads->error.data() + begin;
    double mean = 0.0, mean_error = 0.0;
    for (int64_t i = 0; i < size && centered; ++i) {
      mean += x[i] / count;
      mean_error += (error[i] + count * unit * std::fabs(x[i])) / count;
    }
    mean_error += centered ? unit * std::fabs(mean) : 0.0;
    double variance = 0.0, variance_error = 0.0;
    for (int64_t i = 0; i < size; ++i) {
      x[i] -= mean;
      error[i] += mean_error + (centered ? unit * std::fabs(x[i]) : 0.0);
      variance += x[i] * x[i] / count;
      variance_error += (2.0 * std::fabs(x[i]) * error[i] + error[i] * error[i]) / count;
    }
    variance_error += (count + 2.0) * unit * (variance + epsilon);
    const double least = std::max(variance - variance_error, 0.0) + epsilon;
    const double deviation = std::sqrt(variance + epsilon);
    // sqrt and division (or its inverse and a product), each rounded.
    const double relative = 0.5 * variance_error / least + 3.0 * unit;
    for (int64_t i = 0; i < size; ++i) {
      const double weight = norm.weight.empty() ? 1.0 : static_cast<double>(norm.weight[At(i)]);
      const double bias = norm.bias.empty() ? 0.0 : static_cast<double>(norm.bias[At(i)]);
      const double scaled = x[i] / deviation * weight;
      error[i] = std::fabs(weight) * error[i] / std::sqrt(least) +
                 std::fabs(scaled) * (relative + 2.0 * unit);
      x[i] = scaled + bias;
      error[i] += norm.bias.empty() ? 0.0 : unit * std::fabs(x[i]);
    }
  }
}

// a cos - b sin: cosine and sine rounded, two products, one sum.
void Rotate(const RotaryPosition& rotary, const std::vector<int64_t>& positions, int64_t heads,
            int64_t size, double unit, Approx* values) {
  const int64_t dimension = rotary.dimension > 0 ? rotary.dimension : size;
  for (size_t t = 0; t < positions.size(); ++t) {
    const auto table = reference::RotaryTable(rotary, dimension, positions[t]);
    for (int64_t h = 0; h < heads; ++h) {
      double* x = values->value.data() + (static_cast<int64_t>(t) * heads + h) * size;
      double* error = values->error.data() + (static_cast<int64_t>(t) * heads + h) * size;
      for (int64_t pair = 0; pair < dimension / 2; ++pair) {
        const auto [i, j] = reference::RotaryPair(rotary.pairing, dimension, pair);
        const double c = table[At(pair)].cosine;
        const double s = table[At(pair)].sine;
        const double a = x[i], b = x[j], ea = error[i], eb = error[j];
        x[i] = a * c - b * s;
        x[j] = b * c + a * s;
        error[i] = ea * std::fabs(c) + eb * std::fabs(s) +
                   unit * (2.0 * std::fabs(a * c) + 2.0 * std::fabs(b * s) + std::fabs(x[i]));
        error[j] = eb * std::fabs(c) + ea * std::fabs(s) +
                   unit * (2.0 * std::fabs(b * c) + 2.0 * std::fabs(a * s) + std::fabs(x[j]));
      }
    }
  }
}

std::vector<int64_t> PositionsOr(const std::vector<int64_t>& given, int64_t first, int64_t count) {
  std::vector<int64_t> positions = given;
  for (int64_t i = static_cast<int64_t>(given.size()); i < count; ++i) {
    positions.push_back(first + i);
  }
  return positions;
}

// Everything the attention function of one call reads.
struct Analysis {
  const LayerSpec& spec;
  const reference::Weights& weights;
  const reference::Input& input;
  const reference::Output& reference;
  const Precision& precision;
  int64_t queries = 0;
  int64_t keys = 0;
  std::vector<int64_t> query_positions, key_positions;
  ErrorBounds bounds;

  void BoundQueries();
  void BoundKeys();
  void BoundScores();
  void BoundRow(int64_t head, int64_t query);
  void BoundOutput();
};

void Analysis::BoundQueries() {
  const double unit = precision.unit;
  Approx q;
  if (spec.kind == LayerKind::kCoreAttention) {
    q = Given(input.query, precision.input);
  } else {
    Approx x = Given(input.x, precision.input);
    AddSinusoids(spec, query_positions, unit, &x);
    q = Project(x, spec.input_size, spec.query_width(), weights.query, weights.query_bias, unit);
  }
  Normalize(spec.attention.query_norm, spec.key_head_size, unit, &q);
  if (const auto* rotary = std::get_if<RotaryPosition>(&spec.attention.position)) {
    Rotate(*rotary, query_positions, spec.head_count, spec.key_head_size, unit, &q);
  }
  bounds.query = q.error;
}

void Analysis::BoundKeys() {
  const double unit = precision.unit;
  const int64_t past = static_cast<int64_t>(input.past_key.size()) / spec.key_width();
  const std::vector<int64_t> positions(key_positions.begin() + past, key_positions.end());
  Approx k, v;
  if (spec.kind == LayerKind::kCoreAttention) {
    k = Given(input.key, precision.input);
    v = Given(input.value, precision.input);
  } else if (keys > past) {
    const bool cross = spec.kind == LayerKind::kCrossAttention;
    const int64_t size = cross ? spec.context_size : spec.input_size;
    Approx source = Given(cross ? input.context : input.x, precision.input);
    if (!cross) AddSinusoids(spec, positions, unit, &source);
    k = Project(source, size, spec.key_width(), weights.key, weights.key_bias, unit);
    v = Project(source, size, spec.value_width(), weights.value, weights.value_bias, unit);
  }
  Normalize(spec.attention.key_norm, spec.key_head_size, unit, &k);
  if (const auto* rotary = std::get_if<RotaryPosition>(&spec.attention.position)) {
    Rotate(*rotary, positions, spec.kv_head_count, spec.key_head_size, unit, &k);
  }
  const auto cached = [&](const Approx& fresh, const Values& past_elements, int64_t size) {
    Values errors;
    for (const double value : past_elements) errors.push_back(precision.cached * std::fabs(value));
    const auto largest = [&](size_t i) { return std::fabs(fresh.value[i]) + fresh.error[i]; };
    for (size_t i = 0; i < fresh.value.size(); ++i) {
      double bound = largest(i);
      const size_t vector = i - i % At(size);
      for (size_t j = vector; spec.cache_dtype == DType::kI8 && j < vector + At(size); ++j) {
        bound = std::max(bound, largest(j));
      }
      errors.push_back(fresh.error[i] + precision.cached * bound +
                       RoundingError(spec.cache_dtype, bound));
    }
    return errors;
  };
  bounds.present_key = cached(k, input.past_key, spec.key_head_size);
  bounds.present_value = cached(v, input.past_value, spec.value_head_size);
}

void Analysis::BoundScores() {
  const AttentionOptions& options = spec.attention;
  const double unit = precision.unit;
  const double scale = options.scale.has_value()
                           ? static_cast<double>(*options.scale)
                           : 1.0 / std::sqrt(static_cast<double>(spec.key_head_size));
  const double scale_error = options.scale.has_value() ? 0.0 : unit;
  const double softcap = static_cast<double>(options.softcap);
  const auto* alibi = std::get_if<AlibiPosition>(&options.position);
  const int64_t size = spec.key_head_size;
  for (int64_t h = 0; h < spec.head_count; ++h) {
    const int64_t g = h / spec.group_size();
    const double slope =
        alibi != nullptr ? reference::AlibiSlopesOf(*alibi, spec.head_count)[At(h)] : 0.0;
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t j = 0; j < keys; ++j) {
        const size_t place = At((h * queries + i) * keys + j);
        double absolute = 0.0, inherited = 0.0;
        for (int64_t e = 0; e < size; ++e) {
          const size_t q = At((i * spec.head_count + h) * size + e);
          const size_t k = At((j * spec.kv_head_count + g) * size + e);
          const double a = std::fabs(reference.query[q]);
          const double b = std::fabs(reference.present_key[k]);
          absolute += a * b;
          inherited += bounds.query[q] * b + a * bounds.present_key[k] +
                       bounds.query[q] * bounds.present_key[k];
        }
        const double score = std::fabs(reference.scores[place]);
        const double score_error =
            std::fabs(scale) * (inherited + static_cast<double>(size) * unit * absolute) +
            (scale_error + unit) * score + kSmallest;
        bounds.scores.push_back(score_error);

        // c tanh(s / c) by E = e^(-2 |s| / c) - 1 and -E / (E + 2): the error of s through the
        // slope, that of e^x at most doubled, and two quotients, a sum and a product rounded.
        const double capped = reference.softcapped[place];
        double capped_error = score_error;
        if (softcap > 0.0) {
          const double low = std::tanh(std::max(score - score_error, 0.0) / softcap);
          capped_error = score_error * (1.0 - low * low) +
                         std::fabs(capped) * (2.0 * precision.exp + 4.0 * unit) + kSmallest;
        }
        bounds.softcapped.push_back(capped_error);

        const double distance =
            static_cast<double>(std::abs(query_positions[At(i)] - key_positions[At(j)]));
        const double bias = input.additive_mask.empty() ? 0.0 : input.additive_mask[place];
        if (reference.masked[place] == -kInfinity) {
          bounds.masked.push_back(0.0);
          continue;
        }
        // Slope, product and each sum rounded; the order of the sums is free.
        const double linear = slope * distance;
        double masked_error = capped_error + 2.0 * unit * std::fabs(linear);
        if (bias != 0.0 && linear != 0.0) {
          masked_error += unit * std::max(std::fabs(capped + bias), std::fabs(capped - linear));
        }
        if (bias != 0.0 || linear != 0.0) {
          masked_error += unit * std::fabs(reference.masked[place]);
        }
        bounds.masked.push_back(masked_error);
      }
    }
  }
}

void Analysis::BoundRow(int64_t head, int64_t query) {
  const double unit = precision.unit;
  const int64_t row = head * queries + query;
  const double* masked = reference.masked.data() + row * keys;
  const double* masked_error = bounds.masked.data() + row * keys;
  const double* weights_after = reference.weights.data() + row * keys;
  const double lse = reference.lse[At(row)];
  const int64_t size = spec.value_head_size;
  if (lse == -kInfinity) {
    bounds.lse.push_back(0.0);
    bounds.weights.insert(bounds.weights.end(), At(keys), 0.0);
    bounds.context.insert(bounds.context.end(), At(size), 0.0);
    return;
  }
  const double top = *std::max_element(masked, masked + keys);
  const bool has_sink = !spec.attention.sink_logits.empty();
  const double sink = has_sink ? static_cast<double>(spec.attention.sink_logits[At(head)]) : top;
  const double summit = std::max(top, sink);
  const double visible = static_cast<double>(keys - std::count(masked, masked + keys, -kInfinity));
  const double rescalings = static_cast<double>(BlocksForTokens(keys) - 1 + (has_sink ? 1 : 0));

  Values relative(At(keys), 0.0);
  double sum_error = 0.0;
  for (int64_t j = 0; j < keys; ++j) {
    if (masked[j] == -kInfinity) continue;
    relative[At(j)] = masked_error[j] + unit * (summit - masked[j]) + precision.exp +
                      rescalings * (precision.exp + unit);
    sum_error += std::exp(masked[j] - lse) * relative[At(j)];
  }
  if (has_sink) {
    sum_error += std::exp(sink - lse) * (unit * (summit - sink) + precision.exp + unit);
  }
  // Sixteen lanes, each added up over the blocks, then over each other.
  const double lanes = static_cast<double>(kStripWidth);
  sum_error +=
      unit * (std::ceil(static_cast<double>(keys) / lanes) + std::log2(lanes) + rescalings);

  const double lse_error = sum_error + unit * std::fabs(lse);
  bounds.lse.push_back(lse_error);

  // Weights to be seen are exp(m - lse); under dropout times 1 / (1 - p), three roundings in all.
  const double kept_factor = 1.0 / (1.0 - input.dropout_p);
  const double scaling = input.dropout_p > 0.0 ? 3.0 * unit : 0.0;
  for (int64_t j = 0; j < keys; ++j) {
    const double weight_error = masked[j] == -kInfinity
                                    ? 0.0
                                    : masked_error[j] + lse_error + precision.exp +
                                          unit * std::fabs(masked[j] - lse) + scaling;
    bounds.weights.push_back(weights_after[j] * weight_error + kept_factor * kLeastWeight);
  }
  // Sums of values are divided by the sum of weights.
  const double finish = 2.0 * unit + scaling;
  const int64_t g = head / spec.group_size();
  for (int64_t e = 0; e < size; ++e) {
    double error = 0.0;
    for (int64_t j = 0; j < keys; ++j) {
      const size_t at = At((j * spec.kv_head_count + g) * size + e);
      const double value = std::fabs(reference.present_value[at]);
      if (masked[j] == -kInfinity || !std::isfinite(value)) continue;
      error += weights_after[j] * (bounds.present_value[at] +
                                   value * (relative[At(j)] + sum_error + finish + visible * unit));
      error += kept_factor * kLeastWeight * value;
    }
    bounds.context.push_back(error);
  }
}

void Analysis::BoundOutput() {
  const int64_t heads = spec.head_count;
  const int64_t size = spec.value_head_size;
  Approx rows{Values(reference.context.size()), Values(reference.context.size())};
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < queries; ++t) {
      for (int64_t e = 0; e < size; ++e) {
        const size_t to = At((t * heads + h) * size + e);
        const size_t from = At((h * queries + t) * size + e);
        rows.value[to] = reference.context[from];
        rows.error[to] = bounds.context[from];
      }
    }
  }
  bounds.output = spec.output_projection
                      ? Project(rows, spec.context_width(), spec.output_size, weights.output,
                                weights.output_bias, precision.unit)
                            .error
                      : rows.error;
  for (int64_t t = 0; t < queries && !input.query_padding.empty(); ++t) {
    if (!input.query_padding[At(t)]) continue;
    std::fill_n(bounds.output.begin() + t * spec.output_size, spec.output_size, 0.0);
  }
}

}  // namespace

double RoundingError(DType type, double value) {
  switch (type) {
    case DType::kF16:
      return std::max(0x1p-11 * std::fabs(value), 0x1p-25);
    case DType::kBF16:
      return std::max(0x1p-8 * std::fabs(value), 0x1p-134);
    case DType::kI8:  // half a step, and the roundings of the scale
      return std::fabs(value) / 254.0 * 1.001;
    default:
      return 0.0;
  }
}

ErrorBounds BoundErrors(const LayerSpec& spec, const reference::Weights& weights,
                        const reference::Input& input, const reference::Output& reference,
                        const Precision& precision) {
  Analysis analysis{spec, weights, input, reference, precision, 0, 0, {}, {}, {}};
  analysis.queries = input.query_count;
  analysis.keys = static_cast<int64_t>(reference.present_key.size()) / spec.key_width();
  const int64_t past = static_cast<int64_t>(input.past_key.size()) / spec.key_width();
  analysis.query_positions =
      PositionsOr(input.query_positions, input.causal_offset, analysis.queries);
  analysis.key_positions = PositionsOr(input.past_positions, 0, past);
  for (const int64_t position : PositionsOr(input.key_positions, past, analysis.keys - past)) {
    analysis.key_positions.push_back(position);
  }
  analysis.key_positions.resize(At(analysis.keys));
  analysis.BoundQueries();
  analysis.BoundKeys();
  analysis.BoundScores();
  for (int64_t h = 0; h < spec.head_count; ++h) {
    for (int64_t i = 0; i < analysis.queries; ++i) analysis.BoundRow(h, i);
  }
  analysis.BoundOutput();
  return analysis.bounds;
}

}  // namespace attnserve
