#include "lib/attention/reference_positions.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace attnserve::reference {
namespace {

constexpr double kPi = 3.14159265358979323846;

std::vector<double> PlainFrequencies(double theta, int64_t dimension) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < dimension; i += 2) {
    frequencies.push_back(
        std::pow(theta, -static_cast<double>(i) / static_cast<double>(dimension)));
  }
  return frequencies;
}

double DynamicNtkBase(const DynamicNtkScaling& scaling, double theta, int64_t dimension,
                      int64_t position) {
  const double original = static_cast<double>(scaling.original_max_tokens);
  const double length = std::max(static_cast<double>(position) + 1.0, original);
  const double stretch = scaling.factor * length / original - (scaling.factor - 1.0);
  const double d = static_cast<double>(dimension);
  return dimension > 2 ? theta * std::pow(stretch, d / (d - 2.0)) : theta;
}

void ScaleYarn(const YarnScaling& scaling, double theta, std::vector<double>* frequencies) {
  const double pairs = static_cast<double>(frequencies->size());
  const double dimension = 2.0 * pairs;
  const auto pair_with_rotations = [&](double rotations) {
    const double original = static_cast<double>(scaling.original_max_tokens);
    return dimension * std::log(original / (rotations * 2.0 * kPi)) / (2.0 * std::log(theta));
  };
  const double low = std::max(std::floor(pair_with_rotations(scaling.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_with_rotations(scaling.beta_slow)), dimension - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies->size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double kept = (*frequencies)[i];
    (*frequencies)[i] = kept / scaling.factor * ramp + kept * (1.0 - ramp);
  }
}

void ScaleLlama3(const Llama3Scaling& scaling, std::vector<double>* frequencies) {
  const double original = static_cast<double>(scaling.original_max_tokens);
  for (double& frequency : *frequencies) {
    const double wavelength = 2.0 * kPi / frequency;
    if (wavelength > original / scaling.low_freq_factor) {
      frequency /= scaling.factor;
    } else if (wavelength >= original / scaling.high_freq_factor) {
      const double smooth = (original / wavelength - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
      frequency = (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
    }
  }
}

double AttentionFactor(const RotaryPosition& rotary) {
  const auto* yarn = std::get_if<YarnScaling>(&rotary.scaling);
  if (yarn == nullptr) return 1.0;
  if (yarn->attention_factor.has_value()) return *yarn->attention_factor;
  return yarn->factor <= 1.0 ? 1.0 : 0.1 * std::log(yarn->factor) + 1.0;
}

std::vector<double> Frequencies(const RotaryPosition& rotary, int64_t dimension, int64_t position) {
  if (const auto* scaling = std::get_if<DynamicNtkScaling>(&rotary.scaling)) {
    return PlainFrequencies(DynamicNtkBase(*scaling, rotary.theta, dimension, position), dimension);
  }
  std::vector<double> frequencies = PlainFrequencies(rotary.theta, dimension);
  if (const auto* scaling = std::get_if<LinearScaling>(&rotary.scaling)) {
    for (double& frequency : frequencies) frequency /= scaling->factor;
  } else if (const auto* scaling = std::get_if<YarnScaling>(&rotary.scaling)) {
    ScaleYarn(*scaling, rotary.theta, &frequencies);
  } else if (const auto* scaling = std::get_if<Llama3Scaling>(&rotary.scaling)) {
    ScaleLlama3(*scaling, &frequencies);
  }
  return frequencies;
}

std::vector<double> SlopesForPowerOfTwo(int64_t head_count) {
  std::vector<double> slopes;
  for (int64_t h = 1; h <= head_count; ++h) {
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(head_count)));
  }
  return slopes;
}

}  // namespace

double SinusoidalElement(double base, int64_t size, int64_t position, int64_t index) {
  const int64_t pair_start = index - index % 2;
  const double exponent = static_cast<double>(pair_start) / static_cast<double>(size);
  const double angle = static_cast<double>(position) / std::pow(base, exponent);
  return index % 2 == 0 ? std::sin(angle) : std::cos(angle);
}

std::vector<Rotation> RotaryTable(const RotaryPosition& rotary, int64_t dimension,
                                  int64_t position) {
  const double factor = AttentionFactor(rotary);
  std::vector<Rotation> table;
  for (const double frequency : Frequencies(rotary, dimension, position)) {
    const double angle = static_cast<double>(position) * frequency;
    table.push_back({std::cos(angle) * factor, std::sin(angle) * factor});
  }
  return table;
}

PairIndices RotaryPair(RotaryPosition::Pairing pairing, int64_t dimension, int64_t pair) {
  if (pairing == RotaryPosition::Pairing::kInterleaved) return {2 * pair, 2 * pair + 1};
  return {pair, pair + dimension / 2};
}

void ApplyRotary(const RotaryPosition& rotary, const std::vector<int64_t>& positions, int64_t heads,
                 int64_t size, std::vector<double>* values) {
  const int64_t dimension = rotary.dimension > 0 ? rotary.dimension : size;
  double* head = values->data();
  for (const int64_t position : positions) {
    const std::vector<Rotation> table = RotaryTable(rotary, dimension, position);
    for (int64_t h = 0; h < heads; ++h, head += size) {
      for (int64_t pair = 0; pair < dimension / 2; ++pair) {
        const auto [first, second] = RotaryPair(rotary.pairing, dimension, pair);
        const Rotation& turn = table[static_cast<size_t>(pair)];
        const double a = head[first];
        const double b = head[second];
        head[first] = a * turn.cosine - b * turn.sine;
        head[second] = b * turn.cosine + a * turn.sine;
      }
    }
  }
}

void ApplyHeadNorm(const HeadNorm& norm, int64_t size, std::vector<double>* values) {
  if (norm.kind == HeadNorm::Kind::kNone) return;
  const double count = static_cast<double>(size);
  for (auto head = values->begin(); head != values->end(); head += size) {
    double mean = 0.0;
    if (norm.kind == HeadNorm::Kind::kLayer) {
      for (int64_t i = 0; i < size; ++i) mean += head[i] / count;
    }
    double variance = 0.0;
    for (int64_t i = 0; i < size; ++i) variance += (head[i] - mean) * (head[i] - mean) / count;
    const double deviation = std::sqrt(variance + static_cast<double>(norm.epsilon));
    for (int64_t i = 0; i < size; ++i) {
      const size_t at = static_cast<size_t>(i);
      const double weight = norm.weight.empty() ? 1.0 : static_cast<double>(norm.weight[at]);
      const double bias = norm.bias.empty() ? 0.0 : static_cast<double>(norm.bias[at]);
      head[i] = (head[i] - mean) / deviation * weight + bias;
    }
  }
}

std::vector<double> AlibiSlopesOf(const AlibiPosition& alibi, int64_t head_count) {
  if (!alibi.slopes.empty()) return {alibi.slopes.begin(), alibi.slopes.end()};
  int64_t lower = 1;
  while (2 * lower <= head_count) lower *= 2;
  std::vector<double> slopes = SlopesForPowerOfTwo(lower);
  const std::vector<double> higher = SlopesForPowerOfTwo(2 * lower);
  for (size_t i = 0; static_cast<int64_t>(slopes.size()) < head_count; i += 2) {
    slopes.push_back(higher[i]);
  }
  return slopes;
}

}  // namespace attnserve::reference
