#include "lib/attention/positions.h"

#include <algorithm>
#include <cmath>

namespace attnserve {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

// base^(-2 pair / size).
double Frequency(double base, int64_t pair, int64_t size) {
  return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(size));
}

// Index of the pair that turns `rotations` times within `tokens` positions (Peng et al. 2023).
double CorrectionPair(double rotations, int64_t dimension, double theta, int64_t tokens) {
  return static_cast<double>(dimension) *
         std::log(static_cast<double>(tokens) / (rotations * kTwoPi)) / (2.0 * std::log(theta));
}

void ApplyYarn(const YarnScaling& yarn, int64_t dimension, double theta,
               std::vector<double>* frequencies) {
  const double last = static_cast<double>(dimension - 1);
  const double low = std::max(
      0.0, std::floor(CorrectionPair(yarn.beta_fast, dimension, theta, yarn.original_max_tokens)));
  double high = std::min(
      last, std::ceil(CorrectionPair(yarn.beta_slow, dimension, theta, yarn.original_max_tokens)));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies->size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double& frequency = (*frequencies)[i];
    frequency = frequency / yarn.factor * ramp + frequency * (1.0 - ramp);
  }
}

void ApplyLlama3(const Llama3Scaling& llama, std::vector<double>* frequencies) {
  const double tokens = static_cast<double>(llama.original_max_tokens);
  for (double& frequency : *frequencies) {
    const double wavelength = kTwoPi / frequency;
    if (wavelength > tokens / llama.low_freq_factor) {
      frequency /= llama.factor;
    } else if (wavelength >= tokens / llama.high_freq_factor) {
      const double smooth = (tokens / wavelength - llama.low_freq_factor) /
                            (llama.high_freq_factor - llama.low_freq_factor);
      frequency = (1.0 - smooth) * frequency / llama.factor + smooth * frequency;
    }
  }
}

}  // namespace

RotaryAngles::RotaryAngles(const RotaryPosition& rotary, int64_t key_head_size)
    : dimension_(rotary.dimension > 0 ? rotary.dimension : key_head_size),
      interleaved_(rotary.pairing == RotaryPosition::Pairing::kInterleaved),
      theta_(rotary.theta) {
  for (int64_t i = 0; i < pairs(); ++i) {
    frequencies_.push_back(Frequency(theta_, i, dimension_));
  }
  if (const auto* linear = std::get_if<LinearScaling>(&rotary.scaling)) {
    for (double& frequency : frequencies_) frequency /= linear->factor;
  } else if (const auto* ntk = std::get_if<DynamicNtkScaling>(&rotary.scaling)) {
    ntk_factor_ = ntk->factor;
    ntk_tokens_ = ntk->original_max_tokens;
  } else if (const auto* yarn = std::get_if<YarnScaling>(&rotary.scaling)) {
    ApplyYarn(*yarn, dimension_, theta_, &frequencies_);
    factor_ = yarn->attention_factor.value_or(
        yarn->factor > 1.0 ? 0.1 * std::log(yarn->factor) + 1.0 : 1.0);
  } else if (const auto* llama = std::get_if<Llama3Scaling>(&rotary.scaling)) {
    ApplyLlama3(*llama, &frequencies_);
  }
}

// The base grows with the token's own position, so that a cached key never depends on later tokens.
double RotaryAngles::DynamicBase(int64_t position) const {
  const double d = static_cast<double>(dimension_);
  const double tokens = static_cast<double>(position) + 1.0;
  const double growth =
      ntk_factor_ * tokens / static_cast<double>(ntk_tokens_) - (ntk_factor_ - 1.0);
  return theta_ * std::pow(growth, d / (d - 2.0));
}

void RotaryAngles::At(int64_t position, float* cosine, float* sine) const {
  const bool grown = ntk_factor_ > 0.0 && position >= ntk_tokens_;
  const double base = grown ? DynamicBase(position) : 0.0;
  for (int64_t i = 0; i < pairs(); ++i) {
    const double frequency =
        grown ? Frequency(base, i, dimension_) : frequencies_[static_cast<size_t>(i)];
    const double angle = static_cast<double>(position) * frequency;
    cosine[i] = static_cast<float>(std::cos(angle) * factor_);
    sine[i] = static_cast<float>(std::sin(angle) * factor_);
  }
}

Sinusoids::Sinusoids(double base, int64_t size) : size_(size) {
  for (int64_t i = 0; 2 * i < size; ++i) frequencies_.push_back(Frequency(base, i, size));
}

void Sinusoids::Add(int64_t position, float* x) const {
  for (int64_t i = 0; i < size_; i += 2) {
    const double angle = static_cast<double>(position) * frequencies_[static_cast<size_t>(i / 2)];
    x[i] += static_cast<float>(std::sin(angle));
    if (i + 1 < size_) x[i + 1] += static_cast<float>(std::cos(angle));
  }
}

}  // namespace attnserve
