#include "tests/unit/model/naive_hugging_face.h"

#include <algorithm>
#include <cmath>

namespace attnserve {
namespace {

using Values = std::vector<double>;

Values Doubles(const TestCheckpoint& checkpoint, const std::string& name) {
  const std::vector<float> values = checkpoint.Values(name);
  return {values.begin(), values.end()};
}

size_t At(int64_t index) { return static_cast<size_t>(index); }

// torch.nn.Linear: x W^T + b, W [out, in].
Values Linear(const Values& x, int64_t in, const Values& weight, const Values& bias) {
  const int64_t rows = static_cast<int64_t>(x.size()) / in;
  const int64_t out = static_cast<int64_t>(weight.size()) / in;
  Values y;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias.empty() ? 0.0 : bias[At(o)];
      for (int64_t i = 0; i < in; ++i) sum += x[At(r * in + i)] * weight[At(o * in + i)];
      y.push_back(sum);
    }
  }
  return y;
}

// transformers' Conv1D: x W + b, W [in, out].
Values Conv1D(const Values& x, int64_t in, const Values& weight, const Values& bias) {
  const int64_t out = static_cast<int64_t>(weight.size()) / in;
  Values transposed(weight.size());
  for (int64_t i = 0; i < in; ++i) {
    for (int64_t o = 0; o < out; ++o) transposed[At(o * in + i)] = weight[At(i * out + o)];
  }
  return Linear(x, in, transposed, bias);
}

void RmsNorm(const Values& weight, double epsilon, Values* heads) {
  if (weight.empty()) return;
  const size_t size = weight.size();
  for (size_t begin = 0; begin < heads->size(); begin += size) {
    double square = 0.0;
    for (size_t i = 0; i < size; ++i) square += (*heads)[begin + i] * (*heads)[begin + i];
    const double root = std::sqrt(square / static_cast<double>(size) + epsilon);
    for (size_t i = 0; i < size; ++i) (*heads)[begin + i] *= weight[i] / root;
  }
}

// q * cos + rotate_half(q) * sin for heads [T, heads, size].
void RotateHalf(const Values& frequencies, int64_t heads, int64_t size, Values* values) {
  if (frequencies.empty()) return;
  const int64_t half = static_cast<int64_t>(frequencies.size());
  const int64_t rows = static_cast<int64_t>(values->size()) / size;
  for (int64_t row = 0; row < rows; ++row) {
    const double position = static_cast<double>(row / heads);
    double* head = values->data() + row * size;
    for (int64_t i = 0; i < half; ++i) {
      const double cosine = std::cos(position * frequencies[At(i)]);
      const double sine = std::sin(position * frequencies[At(i)]);
      const double low = head[i], high = head[i + half];
      head[i] = low * cosine - high * sine;
      head[i + half] = high * cosine + low * sine;
    }
  }
}

struct Context {
  Values values;  // [T, heads * head_size]
  double largest_score = 0.0;
};

Context Attend(const Values& q, const Values& k, const Values& v, const NaiveOptions& options) {
  const int64_t size = options.head_size;
  const int64_t tokens = static_cast<int64_t>(q.size()) / (options.heads * size);
  const int64_t repeat = options.heads / options.kv_heads;
  Context context;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < options.heads; ++h) {
      const int64_t g = h / repeat;
      Values scores;
      for (int64_t s = 0; s < tokens; ++s) {
        double dot = 0.0;
        for (int64_t i = 0; i < size; ++i) {
          dot += q[At((t * options.heads + h) * size + i)] *
                 k[At((s * options.kv_heads + g) * size + i)];
        }
        const bool future = options.causal && s > t;
        const bool left_behind = options.window > 0 && t - s >= options.window;
        scores.push_back(future || left_behind ? -HUGE_VAL : dot * options.scale);
        context.largest_score = std::max(context.largest_score, std::fabs(dot * options.scale));
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0.0;
      for (double& score : scores) sum += score = std::exp(score - most);
      for (int64_t i = 0; i < size; ++i) {
        double mixed = 0.0;
        for (int64_t s = 0; s < tokens; ++s) {
          mixed += scores[At(s)] / sum * v[At((s * options.kv_heads + g) * size + i)];
        }
        context.values.push_back(mixed);
      }
    }
  }
  return context;
}

double Largest(const Values& values) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

double Bound(const Values& x, int64_t hidden, const Context& context, const Values& v,
             const Values& output_weight, const NaiveOptions& options) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / hidden;
  const double depth =
      static_cast<double>(2 * hidden + options.heads * options.head_size + tokens + 64);
  const double weight_sum =
      Largest(output_weight) * static_cast<double>(options.heads * options.head_size);
  return 0x1p-53 * depth * (1.0 + context.largest_score) * (1.0 + Largest(v)) * (1.0 + weight_sum);
}

}  // namespace

NaiveResult NaiveLlama(const TestCheckpoint& checkpoint, const std::string& scope, const Values& x,
                       int64_t hidden, const NaiveOptions& options) {
  const auto project = [&](const std::string& name) {
    return Linear(x, hidden, Doubles(checkpoint, scope + name + ".weight"),
                  Doubles(checkpoint, scope + name + ".bias"));
  };
  Values q = project("q_proj"), k = project("k_proj");
  const Values v = project("v_proj");
  RmsNorm(Doubles(checkpoint, scope + "q_norm.weight"), options.norm_epsilon, &q);
  RmsNorm(Doubles(checkpoint, scope + "k_norm.weight"), options.norm_epsilon, &k);
  RotateHalf(options.inverse_frequencies, options.heads, options.head_size, &q);
  RotateHalf(options.inverse_frequencies, options.kv_heads, options.head_size, &k);
  const Context context = Attend(q, k, v, options);
  const Values weight = Doubles(checkpoint, scope + "o_proj.weight");
  return {Linear(context.values, options.heads * options.head_size, weight,
                 Doubles(checkpoint, scope + "o_proj.bias")),
          Bound(x, hidden, context, v, weight, options)};
}

NaiveResult NaiveGpt2(const TestCheckpoint& checkpoint, const std::string& scope, const Values& x,
                      int64_t hidden, const NaiveOptions& options) {
  const Values fused = Conv1D(x, hidden, Doubles(checkpoint, scope + "c_attn.weight"),
                              Doubles(checkpoint, scope + "c_attn.bias"));
  Values parts[3];
  for (size_t i = 0; i < fused.size(); ++i) {
    parts[i / At(hidden) % 3].push_back(fused[i]);
  }
  const Context context = Attend(parts[0], parts[1], parts[2], options);
  const Values weight = Doubles(checkpoint, scope + "c_proj.weight");
  return {Conv1D(context.values, hidden, weight, Doubles(checkpoint, scope + "c_proj.bias")),
          Bound(x, hidden, context, parts[2], weight, options)};
}

NaiveResult NaiveBert(const TestCheckpoint& checkpoint, const std::string& scope, const Values& x,
                      int64_t hidden, const NaiveOptions& options) {
  const auto project = [&](const Values& input, const std::string& name) {
    return Linear(input, hidden, Doubles(checkpoint, scope + name + ".weight"),
                  Doubles(checkpoint, scope + name + ".bias"));
  };
  const Values v = project(x, "self.value");
  const Context context = Attend(project(x, "self.query"), project(x, "self.key"), v, options);
  return {
      project(context.values, "output.dense"),
      Bound(x, hidden, context, v, Doubles(checkpoint, scope + "output.dense.weight"), options)};
}

}  // namespace attnserve
