#include "tests/unit/attention/random_layer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/base/tensor.h"

namespace attnserve {
namespace {

using reference::Values;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

DType RandomFloatType(Dice& dice) {
  return dice.Chance(0.6) ? DType::kF32 : dice.Pick({DType::kF16, DType::kBF16});
}

// `value` as the nearest value of `type`.
double Exact(DType type, double value) {
  const float narrow = static_cast<float>(value);
  uint8_t stored[4];
  StoreFromF32(&narrow, 1, type, stored);
  float exact = 0.0f;
  LoadAsF32(type, stored, 1, &exact);
  return static_cast<double>(exact);
}

Values Normals(Dice& dice, DType type, int64_t count, double deviation) {
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = Exact(type, deviation * dice.Normal());
  return values;
}

// Vectors of `size` elements that a cache of `type` holds as they are: for I8 multiples of 1/64 of
// which one is 127, so that the scale is exact.
Values CachedVectors(Dice& dice, DType type, int64_t count, int64_t size) {
  if (type != DType::kI8) return Normals(dice, type, count * size, 1.0);
  Values values;
  for (int64_t vector = 0; vector < count; ++vector) {
    const int64_t largest = dice.Between(0, size - 1);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t steps = i == largest ? 127 : dice.Between(-127, 127);
      values.push_back(static_cast<double>(steps) / 64.0);
    }
  }
  return values;
}

std::vector<float> NormalFloats(Dice& dice, int64_t count, double mean, double deviation) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(mean + deviation * dice.Normal());
  return values;
}

int64_t RandomSize(Dice& dice) {
  if (dice.Chance(0.1)) return dice.Pick<int64_t>({48, 63, 64, 65, 80});
  return dice.Pick<int64_t>({1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33});
}

HeadNorm RandomNorm(Dice& dice, int64_t size) {
  HeadNorm norm;
  if (dice.Chance(0.7)) return norm;
  norm.kind = dice.Pick({HeadNorm::Kind::kRms, HeadNorm::Kind::kLayer});
  norm.epsilon = dice.Pick({1e-6f, 1e-5f, 0.1f});
  if (dice.Chance(0.6)) norm.weight = NormalFloats(dice, size, 1.0, 0.3);
  if (norm.kind == HeadNorm::Kind::kLayer && dice.Chance(0.5)) {
    norm.bias = NormalFloats(dice, size, 0.0, 0.5);
  }
  return norm;
}

RotaryPosition RandomRotary(Dice& dice, int64_t head_size) {
  RotaryPosition rotary;
  rotary.pairing =
      dice.Pick({RotaryPosition::Pairing::kHalfSplit, RotaryPosition::Pairing::kInterleaved});
  rotary.theta = dice.Pick({10000.0, 100.0, 500000.0});
  const bool partial = head_size % 2 != 0 || dice.Chance(0.3);
  if (partial) rotary.dimension = 2 * dice.Between(1, head_size / 2);
  const int64_t original = dice.Pick<int64_t>({4, 16, 64, 4096});
  const double factor = dice.Pick({1.0, 2.0, 8.5});
  switch (dice.Between(0, 7)) {
    case 0:
      rotary.scaling = LinearScaling{factor};
      break;
    case 1:
      rotary.scaling = DynamicNtkScaling{factor, original};
      break;
    case 2:
      rotary.scaling = YarnScaling{factor, original, 32.0, 1.0, std::nullopt};
      break;
    case 3:
      rotary.scaling = YarnScaling{factor, original, 4.0, 0.5, 0.8};
      break;
    case 4:
      rotary.scaling = Llama3Scaling{factor, 1.0, 4.0, original};
      break;
    default:
      break;
  }
  return rotary;
}

void AddPosition(Dice& dice, LayerSpec* spec) {
  AttentionOptions& options = spec->attention;
  switch (dice.Between(0, 5)) {
    case 0:
      if (spec->kind == LayerKind::kCoreAttention) break;
      options.position = SinusoidalPosition{dice.Pick({10000.0, 50.0})};
      break;
    case 1:
    case 2:
      if (spec->key_head_size >= 2) options.position = RandomRotary(dice, spec->key_head_size);
      break;
    case 3: {
      AlibiPosition alibi;
      if (dice.Chance(0.4)) alibi.slopes = NormalFloats(dice, spec->head_count, 0.2, 0.2);
      options.position = alibi;
      break;
    }
    default:
      break;
  }
}

AttentionOptions RandomOptions(Dice& dice, const LayerSpec& spec) {
  AttentionOptions options;
  options.causal = dice.Chance(0.6);
  if (dice.Chance(0.25)) {
    options.window.left = dice.Between(-1, dice.Chance(0.5) ? 5 : 70);
    options.window.right = dice.Between(-1, 6);
    if (dice.Chance(0.5)) options.sink_token_count = dice.Between(0, 5);
  }
  if (dice.Chance(0.25)) options.scale = dice.Pick({0.0f, -0.7f, 1.0f, 0.3f, -2.0f});
  if (dice.Chance(0.2)) options.softcap = dice.Pick({0.5f, 2.0f, 30.0f});
  if (dice.Chance(0.2)) options.sink_logits = NormalFloats(dice, spec.head_count, 0.0, 2.0);
  options.query_norm = RandomNorm(dice, spec.key_head_size);
  options.key_norm = RandomNorm(dice, spec.key_head_size);
  return options;
}

// Positions that grow with gaps, stand still, or jump.
std::vector<int64_t> RandomPositions(Dice& dice, int64_t count) {
  std::vector<int64_t> positions;
  const bool jump = dice.Chance(0.3);
  int64_t position = dice.Pick<int64_t>({0, 3, 1000, 200000});
  for (int64_t i = 0; i < count; ++i) {
    positions.push_back(position);
    position =
        jump ? std::max<int64_t>(0, position + dice.Between(-9, 9)) : position + dice.Between(0, 2);
  }
  return positions;
}

// Of a bool or additive mask, [H, T, S].
struct MaskShape {
  int64_t heads, queries, keys;
};

void AddAttentionMask(Dice& dice, const MaskShape& shape, RandomSequence* sequence) {
  RunPlan& plan = sequence->plan;
  plan.mask_broadcast_heads = dice.Chance(0.5);
  plan.mask_broadcast_queries = dice.Chance(0.3);
  plan.mask_broadcast_keys = dice.Chance(0.1);
  plan.mask_dtype = RandomFloatType(dice);
  plan.mask_lowest = dice.Chance(0.3);
  // A last axis of one element broadcasts: a shorter one has two at least.
  if (!plan.mask_broadcast_keys && shape.keys > 2 && dice.Chance(0.2)) {
    plan.mask_keys = dice.Between(2, shape.keys);
  }
  const bool boolean = dice.Chance(0.5);
  const double kept = dice.Pick({0.1, 0.5, 0.9});
  std::vector<double> drawn;
  for (int64_t i = 0; i < shape.heads * shape.queries * shape.keys; ++i) {
    drawn.push_back(dice.Chance(kept) ? Exact(plan.mask_dtype, 2.0 * dice.Normal()) : -kInfinity);
  }
  for (int64_t h = 0; h < shape.heads; ++h) {
    for (int64_t i = 0; i < shape.queries; ++i) {
      for (int64_t j = 0; j < shape.keys; ++j) {
        const int64_t source_head = plan.mask_broadcast_heads ? 0 : h;
        const int64_t source_query = plan.mask_broadcast_queries ? 0 : i;
        const int64_t source_key = plan.mask_broadcast_keys ? 0 : j;
        const bool beyond = plan.mask_keys >= 0 && j >= plan.mask_keys;
        const double value =
            beyond ? -kInfinity
                   : drawn[static_cast<size_t>(
                         (source_head * shape.queries + source_query) * shape.keys + source_key)];
        if (boolean) {
          sequence->input.bool_mask.push_back(value != -kInfinity);
        } else {
          sequence->input.additive_mask.push_back(value);
        }
      }
    }
  }
}

// A tree among the new tokens: each sees itself and the ancestors of its parent.
void AddTreeMask(Dice& dice, int64_t past, int64_t count, reference::Input* input) {
  std::vector<bool>& mask = input->tree_mask;
  mask.assign(static_cast<size_t>(count * count), false);
  std::vector<int64_t> positions(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t parent = dice.Between(-1, i - 1);
    for (int64_t j = 0; j < count && parent >= 0; ++j) {
      mask[static_cast<size_t>(i * count + j)] = mask[static_cast<size_t>(parent * count + j)];
    }
    mask[static_cast<size_t>(i * count + i)] = true;
    positions[static_cast<size_t>(i)] =
        parent < 0 ? past : positions[static_cast<size_t>(parent)] + 1;
  }
  input->query_positions = positions;
  input->key_positions = positions;
}

void AddMasks(Dice& dice, const LayerSpec& spec, int64_t past, int64_t added,
              RandomSequence* sequence) {
  reference::Input& input = sequence->input;
  const int64_t keys = past + added;
  const bool self = spec.kind == LayerKind::kSelfAttention;
  if (dice.Chance(0.15)) input.valid_keys = dice.Between(0, keys);
  if (dice.Chance(0.15)) {
    for (int64_t j = 0; j < keys; ++j) input.key_mask.push_back(dice.Chance(0.7));
  }
  if (dice.Chance(0.3)) {
    AddAttentionMask(dice, {spec.head_count, input.query_count, keys}, sequence);
  }
  const bool cross = spec.kind == LayerKind::kCrossAttention;
  if (dice.Chance(0.1) && !cross && input.query_count == added) {
    AddTreeMask(dice, past, added, &input);
  }
  if (self && dice.Chance(0.15)) {
    sequence->plan.padding_as_length = dice.Chance(0.5);
    const int64_t valid = dice.Between(0, input.query_count);
    for (int64_t i = 0; i < input.query_count; ++i) {
      input.query_padding.push_back(sequence->plan.padding_as_length ? i >= valid
                                                                     : dice.Chance(0.4));
    }
  }
}

int64_t RandomLength(Dice& dice) {
  if (dice.Chance(0.03)) return dice.Between(90, 200);
  if (dice.Chance(0.15)) return dice.Pick<int64_t>({63, 64, 65, 80});
  return dice.Between(1, 20);
}

void AddCoreTensors(Dice& dice, const LayerSpec& spec, int64_t past, int64_t added,
                    RandomSequence* sequence) {
  reference::Input& input = sequence->input;
  const DType io = sequence->plan.io_dtype;
  const double deviation = dice.Pick({1.0, 1.0, 3.0});
  input.query = Normals(dice, io, input.query_count * spec.query_width(), deviation);
  input.key = Normals(dice, io, added * spec.key_width(), 1.0);
  input.value = Normals(dice, io, added * spec.value_width(), 1.0);
  const int64_t vectors = past * spec.kv_head_count;
  input.past_key = CachedVectors(dice, spec.cache_dtype, vectors, spec.key_head_size);
  input.past_value = CachedVectors(dice, spec.cache_dtype, vectors, spec.value_head_size);
}

// Puts NaN and infinities into some keys and values.
void Poison(Dice& dice, const LayerSpec& spec, RandomSequence* sequence) {
  reference::Input& input = sequence->input;
  const auto poison = [&](int64_t width, double value, Values* values) {
    const int64_t tokens = static_cast<int64_t>(values->size()) / width;
    for (int64_t t = 0; t < tokens; ++t) {
      if (!dice.Chance(0.1)) continue;
      (*values)[static_cast<size_t>(t * width + dice.Between(0, width - 1))] = value;
    }
  };
  if (spec.kind == LayerKind::kCoreAttention) {
    poison(spec.key_width(), kNan, &input.key);
    poison(spec.key_width(), kNan, &input.past_key);
    poison(spec.value_width(), dice.Pick({kNan, kInfinity, -kInfinity}), &input.value);
    poison(spec.value_width(), kNan, &input.past_value);
  } else if (spec.kind == LayerKind::kCrossAttention) {
    poison(spec.context_size, kNan, &input.context);
  } else {
    poison(spec.input_size, kNan, &input.x);
  }
}

}  // namespace

RandomLayer MakeRandomLayer(Dice& dice) {
  RandomLayer layer;
  LayerSpec& spec = layer.spec;
  spec.kind =
      dice.Pick({LayerKind::kSelfAttention, LayerKind::kCrossAttention, LayerKind::kCoreAttention});
  spec.kv_head_count = dice.Pick<int64_t>({1, 1, 2, 3, 4});
  spec.head_count = spec.kv_head_count * dice.Pick<int64_t>({1, 1, 2, 3, 4, 7});
  spec.key_head_size = RandomSize(dice);
  spec.value_head_size = dice.Chance(0.5) ? spec.key_head_size : RandomSize(dice);
  spec.cache_dtype = dice.Chance(0.2) ? DType::kI8 : RandomFloatType(dice);
  spec.attention = RandomOptions(dice, spec);
  AddPosition(dice, &spec);
  spec.output_size = spec.context_width();
  layer.backend = dice.Pick({GemmBackend::kNative, GemmBackend::kOneDnn});
  if (spec.kind == LayerKind::kCoreAttention) return layer;

  spec.input_size = RandomSize(dice);
  if (spec.kind == LayerKind::kCrossAttention) spec.context_size = RandomSize(dice);
  spec.query_bias = dice.Chance(0.4);
  spec.key_bias = dice.Chance(0.4);
  spec.value_bias = dice.Chance(0.4);
  spec.output_projection = dice.Chance(0.7);
  spec.output_bias = spec.output_projection && dice.Chance(0.5);
  if (spec.output_projection) spec.output_size = RandomSize(dice);

  layer.form.dtype = RandomFloatType(dice);
  layer.form.transposed = dice.Chance(0.5);
  const int64_t source = spec.context_size > 0 ? spec.context_size : spec.input_size;
  const auto weight = [&](int64_t in, int64_t out) {
    return Normals(dice, layer.form.dtype, in * out, 1.0 / std::sqrt(static_cast<double>(in)));
  };
  const auto bias = [&](bool present, int64_t out) {
    return Normals(dice, DType::kF32, present ? out : 0, 0.5);
  };
  reference::Weights& weights = layer.weights;
  weights.query = weight(spec.input_size, spec.query_width());
  weights.key = weight(source, spec.key_width());
  weights.value = weight(source, spec.value_width());
  if (spec.output_projection) weights.output = weight(spec.context_width(), spec.output_size);
  weights.query_bias = bias(spec.query_bias, spec.query_width());
  weights.key_bias = bias(spec.key_bias, spec.key_width());
  weights.value_bias = bias(spec.value_bias, spec.value_width());
  weights.output_bias = bias(spec.output_bias, spec.output_size);
  return layer;
}

RandomSequence MakeRandomSequence(const RandomLayer& layer, Dice& dice) {
  const LayerSpec& spec = layer.spec;
  RandomSequence sequence;
  reference::Input& input = sequence.input;
  RunPlan& plan = sequence.plan;
  plan.io_dtype = RandomFloatType(dice);
  plan.output_dtype = dice.Chance(0.8) ? DType::kF32 : plan.io_dtype;
  plan.stage_dtype = dice.Chance(0.8) ? DType::kF32 : plan.io_dtype;
  plan.head_major = dice.Chance(0.5);

  input.query_count = RandomLength(dice);
  int64_t past = 0;
  int64_t added = input.query_count;
  switch (spec.kind) {
    case LayerKind::kSelfAttention:
      input.x = Normals(dice, plan.io_dtype, input.query_count * spec.input_size, 1.0);
      break;
    case LayerKind::kCrossAttention:
      added = RandomLength(dice);
      input.x = Normals(dice, plan.io_dtype, input.query_count * spec.input_size, 1.0);
      input.context = Normals(dice, plan.io_dtype, added * spec.context_size, 1.0);
      break;
    case LayerKind::kCoreAttention: {
      const bool stretches = dice.Chance(0.02);  // keys beyond one stretch of 1,024
      if (stretches) input.query_count = dice.Between(1, 3);
      past = dice.Chance(0.4) ? RandomLength(dice) : 0;
      if (stretches) past = dice.Pick<int64_t>({1020, 1024, 1500, 2100});
      added = dice.Chance(0.3) ? dice.Between(past > 0 ? 0 : 1, 40) : input.query_count;
      input.causal_offset = dice.Chance(0.2) ? dice.Between(-4, past + added) : past;
      AddCoreTensors(dice, spec, past, added, &sequence);
      break;
    }
  }
  const bool self = spec.kind == LayerKind::kSelfAttention;
  if (dice.Chance(0.2)) {
    input.query_positions = RandomPositions(dice, input.query_count);
    input.key_positions = self ? input.query_positions : RandomPositions(dice, added);
    input.past_positions = RandomPositions(dice, past);
  }
  AddMasks(dice, spec, past, added, &sequence);
  if (dice.Chance(0.15)) Poison(dice, spec, &sequence);
  return sequence;
}

}  // namespace attnserve
