// Random layers, sequences, masks, chunkings and truncations: the real layer against the reference
// within the bound of error_bound.h, and its different ways of computing one sequence against each
// other, bit by bit.
//
// ATTNSERVE_RANDOM_LAYERS sets how many, ATTNSERVE_RANDOM_SEED the first seed. A failure prints its
// seed: ATTNSERVE_RANDOM_LAYERS=1 ATTNSERVE_RANDOM_SEED=<seed> repeats it.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/attention/reference.h"
#include "tests/unit/attention/error_bound.h"
#include "tests/unit/attention/layer_harness.h"
#include "tests/unit/attention/random_layer.h"

namespace attnserve {
namespace {

using reference::Input;
using reference::Values;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

#if defined(__has_feature)  // Clang's way to say what GCC's macros say
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ATTNSERVE_SANITIZED
#endif
#endif

#if defined(ATTNSERVE_SANITIZED) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kDefaultLayers = 300;
#elif defined(NDEBUG)
constexpr int64_t kDefaultLayers = 2000;
#else
constexpr int64_t kDefaultLayers = 500;
#endif

const std::vector<Stage> kAllStages = {Stage::kScores,  Stage::kSoftcapped, Stage::kMasked,
                                       Stage::kWeights, Stage::kLse,        Stage::kContext};

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::strtoll(value, nullptr, 10) : otherwise;
}

std::string NameOf(Stage stage) {
  static const std::map<Stage, std::string> kNames = {
      {Stage::kScores, "scores"}, {Stage::kSoftcapped, "softcapped"},
      {Stage::kMasked, "masked"}, {Stage::kWeights, "weights"},
      {Stage::kLse, "lse"},       {Stage::kContext, "context"},
  };
  return kNames.at(stage);
}

// Largest error over bound seen, by what was compared. Values rounded to 16 bits do not count:
// theirs is always near 1.
using Ratios = std::map<std::string, double>;

// What an I8 cache makes of vectors of `size` elements: adds its rounding to the bounds; where an
// element is not finite the whole vector is NaN.
void RoundVectors(int64_t size, Values* vectors, Values* bounds) {
  for (size_t begin = 0; begin < vectors->size(); begin += static_cast<size_t>(size)) {
    const size_t end = begin + static_cast<size_t>(size);
    double largest = 0.0;
    for (size_t i = begin; i < end; ++i) {
      const double element = std::fabs((*vectors)[i]) + (*bounds)[i];
      largest = std::isfinite(element) ? std::max(largest, element) : kNan;
      if (std::isnan(largest)) break;
    }
    for (size_t i = begin; i < end; ++i) {
      (*bounds)[i] += RoundingError(DType::kI8, largest);
      if (std::isnan(largest)) (*vectors)[i] = kNan;
    }
  }
}

// Expects |actual - expected| <= bound + rounding to `stored`, the same infinities and NaN where
// NaN is expected.
void ExpectWithin(const std::string& what, const Values& expected, const Values& bound,
                  DType stored, const Values& actual, Ratios* ratios) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  ASSERT_EQ(expected.size(), bound.size()) << what;
  const bool stores_infinity = what == NameOf(Stage::kMasked);
  double largest = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(actual[i])) << what << "[" << i << "] is " << actual[i] << ", not NaN";
      continue;
    }
    if (actual[i] == expected[i]) continue;
    if (!stores_infinity && std::isinf(expected[i])) {
      // An infinite value whose weight underflows in float32 gives NaN.
      ASSERT_TRUE(std::isnan(actual[i])) << what << "[" << i << "] is " << actual[i] << ", not inf";
      continue;
    }
    const double allowed =
        bound[i] + (stored == DType::kI8
                        ? 0.0  // a matter of vectors, see RoundVectors
                        : RoundingError(stored, std::fabs(expected[i]) + bound[i]));
    if (stored == DType::kF16 && std::fabs(expected[i]) + allowed > 65504.0 &&
        actual[i] == std::copysign(kInfinity, expected[i])) {
      continue;
    }
    const double error = std::fabs(actual[i] - expected[i]);
    ASSERT_LE(error, allowed) << what << "[" << i << "] is " << actual[i] << ", expected "
                              << expected[i];
    largest = std::max(largest, error / allowed);
  }
  if (stored != DType::kF32) return;
  double& ratio = (*ratios)[what];
  ratio = std::max(ratio, largest);
}

// Expects equal bits; any NaN equals any other.
void ExpectSameBits(const std::string& what, const Values& expected, const Values& actual) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  const size_t bytes = expected.size() * sizeof(double);
  if (bytes == 0 || std::memcmp(expected.data(), actual.data(), bytes) == 0) return;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    ASSERT_EQ(std::memcmp(&expected[i], &actual[i], sizeof(double)), 0)
        << what << "[" << i << "] is " << actual[i] << ", expected " << expected[i];
  }
}

void ExpectSameRun(const std::string& what, const LayerRun& expected, const LayerRun& actual) {
  ExpectSameBits(what + ": output", expected.output, actual.output);
  ExpectSameBits(what + ": present_key", expected.present_key, actual.present_key);
  ExpectSameBits(what + ": present_value", expected.present_value, actual.present_value);
  for (const auto& [stage, values] : actual.stages) {
    ExpectSameBits(what + ": " + NameOf(stage), expected.stages.at(stage), values);
  }
}

// Everything about one random layer and one of its sequences.
class RandomCase {
 public:
  RandomCase(uint64_t seed, Ratios* ratios)
      : dice_(seed),
        layer_(MakeRandomLayer(dice_)),
        sequence_(MakeRandomSequence(layer_, dice_)),
        harness_(layer_.spec, layer_.weights, layer_.form, layer_.backend),
        ratios_(ratios) {}

  void Check() {
    ASSERT_TRUE(harness_.ok());
    RunPlan plan = sequence_.plan;
    plan.stages = kAllStages;
    if (dice_.Chance(0.15)) {
      plan.dropout = {dice_.Pick({0.1f, 0.5f, 0.9f}), dice_.Bits()};
      plan.dropout_stream = dice_.Between(0, 5);
      plan.stage_dtype = DType::kF32;  // SetDropped looks for weights of 0: none may underflow
    }
    whole_ = harness_.Run(sequence_.input, plan);
    CheckKeys();
    CheckAttention(plan);
    if (::testing::Test::HasFatalFailure()) return;
    CheckPieces(plan);
    CheckWithoutStages(plan);
    CheckNeighbours(plan);
    if (plan.dropout.p == 0.0f) CheckChunks();
  }

 private:
  LayerSpec UnroundedSpec() const {
    LayerSpec spec = harness_.spec();
    spec.cache_dtype = DType::kF32;
    return spec;
  }

  // The cache holds the reference's keys and values.
  void CheckKeys() {
    Input input = sequence_.input;
    if (layer_.spec.kind != LayerKind::kSelfAttention) {  // whose keys come from the same rows
      input.query_count = 0;
      input.x.clear();
      input.query.clear();
      input.query_positions.clear();
    }
    reference::Output out = reference::Run(UnroundedSpec(), layer_.weights, input);
    ErrorBounds bounds = BoundErrors(UnroundedSpec(), layer_.weights, input, out, {});
    const DType stored = layer_.spec.cache_dtype;
    if (stored == DType::kI8) {
      RoundVectors(layer_.spec.key_head_size, &out.present_key, &bounds.present_key);
      RoundVectors(layer_.spec.value_head_size, &out.present_value, &bounds.present_value);
    }
    ExpectWithin("present_key", out.present_key, bounds.present_key, stored, whole_.present_key,
                 ratios_);
    ExpectWithin("present_value", out.present_value, bounds.present_value, stored,
                 whole_.present_value, ratios_);
  }

  // Over the keys and values as cached, stages and output are the reference's.
  void CheckAttention(const RunPlan& plan) {
    const LayerSpec spec = UnroundedSpec();
    Input input = sequence_.input;
    input.past_positions = AllKeyPositions();
    input.key_positions.clear();
    input.past_key = whole_.present_key;
    input.past_value = whole_.present_value;
    input.keys_cached = true;
    input.key.clear();
    input.value.clear();
    input.context.clear();
    SetDropped(plan, &input);
    expected_ = reference::Run(spec, layer_.weights, input);
    Precision precision;
    precision.cached = CachedPrecision(layer_.spec.cache_dtype);
    const ErrorBounds bounds = BoundErrors(spec, layer_.weights, input, expected_, precision);
    const auto compare = [&](Stage stage, const Values& expected, const Values& bound) {
      ExpectWithin(NameOf(stage), expected, bound, plan.stage_dtype, whole_.stages.at(stage),
                   ratios_);
    };
    compare(Stage::kScores, expected_.scores, bounds.scores);
    compare(Stage::kSoftcapped, expected_.softcapped, bounds.softcapped);
    compare(Stage::kMasked, expected_.masked, bounds.masked);
    compare(Stage::kWeights, expected_.weights, bounds.weights);
    compare(Stage::kLse, expected_.lse, bounds.lse);
    compare(Stage::kContext, expected_.context, bounds.context);
    ExpectWithin("output", expected_.output, bounds.output, plan.output_dtype, whole_.output,
                 ratios_);
    CheckCounts();
  }

  std::vector<int64_t> AllKeyPositions() const {
    const Input& input = sequence_.input;
    if (input.past_positions.empty() && input.key_positions.empty()) return {};
    const size_t keys = whole_.present_key.size() / static_cast<size_t>(layer_.spec.key_width());
    std::vector<int64_t> positions = input.past_positions;
    const size_t past = input.past_key.size() / static_cast<size_t>(layer_.spec.key_width());
    while (positions.size() < past) positions.push_back(static_cast<int64_t>(positions.size()));
    for (size_t i = 0; positions.size() < keys; ++i) {
      positions.push_back(input.key_positions.empty() ? static_cast<int64_t>(positions.size())
                                                      : input.key_positions[i]);
    }
    return positions;
  }

  // What the layer dropped is what it gave no weight although it was visible.
  void SetDropped(const RunPlan& plan, Input* input) {
    if (plan.dropout.p == 0.0f) return;
    const size_t queries = static_cast<size_t>(input->query_count);
    const Values& masked = whole_.stages.at(Stage::kMasked);
    const Values& weights = whole_.stages.at(Stage::kWeights);
    const size_t keys = weights.empty() ? 0 : weights.size() / (queries * Heads());
    input->dropout_p = static_cast<double>(plan.dropout.p);
    input->dropped = [=, &masked, &weights](int64_t head, int64_t query, int64_t key) {
      const size_t place =
          (static_cast<size_t>(head) * queries + static_cast<size_t>(query)) * keys +
          static_cast<size_t>(key);
      return masked[place] != -kInfinity && weights[place] == 0.0;
    };
  }

  size_t Heads() const { return static_cast<size_t>(layer_.spec.head_count); }

  void CheckCounts() {
    const std::vector<bool>& padding = sequence_.input.query_padding;
    const int64_t padded = std::count(padding.begin(), padding.end(), true);
    const int64_t nothing = std::count(expected_.lse.begin(), expected_.lse.end(), -kInfinity);
    EXPECT_EQ(whole_.masked_rows, nothing - padded * layer_.spec.head_count);
    const auto nonfinite = std::count_if(whole_.output.begin(), whole_.output.end(),
                                         [](double value) { return !std::isfinite(value); });
    EXPECT_EQ(whole_.nonfinite_values, nonfinite);
  }

  // Rows in pieces of any size, in any order, by any worker.
  void CheckPieces(RunPlan plan) {
    ShuffledRunner runner(dice_.Bits());
    plan.runner = &runner;
    plan.key_rows = {dice_.Between(1, 9), dice_.Between(1, 70)};
    plan.query_rows = {dice_.Between(1, 9), dice_.Between(1, 70)};
    ExpectSameRun("in pieces", whole_, harness_.Run(sequence_.input, plan));
  }

  void CheckWithoutStages(RunPlan plan) {
    plan.stages.clear();
    ExpectSameRun("without stages", whole_, harness_.Run(sequence_.input, plan));
  }

  // In one call with strangers.
  void CheckNeighbours(const RunPlan& plan) {
    if (!dice_.Chance(0.3)) return;
    const RandomSequence before = MakeRandomSequence(layer_, dice_);
    const RandomSequence after = MakeRandomSequence(layer_, dice_);
    const std::vector<LayerRun> runs = harness_.RunTogether(
        {&before.input, &sequence_.input, &after.input}, {&before.plan, &plan, &after.plan});
    ExpectSameRun("with others", whole_, runs[1]);
  }

  // Chunks of random sizes, some preceded by tokens that are truncated away again.
  std::vector<Step> RandomSteps() {
    const int64_t queries = sequence_.input.query_count;
    const int64_t longest = dice_.Pick<int64_t>({1, 3, 70});
    std::vector<Step> steps;
    for (int64_t begin = 0; begin < queries;) {
      const int64_t end = std::min(queries, begin + dice_.Between(1, longest));
      if (layer_.spec.kind != LayerKind::kCrossAttention && dice_.Chance(0.2)) {
        steps.push_back({begin, std::min(queries, end + dice_.Between(0, 5)), /*junk=*/true});
      }
      steps.push_back({begin, end});
      begin = end;
    }
    return steps;
  }

  // Whether no query sees a key that only a later step appends.
  bool CanRunInSteps(const std::vector<Step>& steps) const {
    const Input& input = sequence_.input;
    if (!input.tree_mask.empty()) return false;
    if (layer_.spec.kind == LayerKind::kCrossAttention) return true;
    const int64_t width = layer_.spec.key_width();
    const int64_t past = static_cast<int64_t>(input.past_key.size()) / width;
    const int64_t keys = static_cast<int64_t>(whole_.present_key.size()) / width;
    if (keys - past != input.query_count) return false;
    for (const Step& step : steps) {
      for (size_t h = 0; h < Heads(); ++h) {
        for (int64_t i = step.begin; i < step.end; ++i) {
          const int64_t row = static_cast<int64_t>(h) * input.query_count + i;
          for (int64_t j = past + step.end; j < keys && !step.junk; ++j) {
            if (expected_.masked[static_cast<size_t>(row * keys + j)] != -kInfinity) return false;
          }
        }
      }
    }
    return true;
  }

  void CheckChunks() {
    RunPlan plan = sequence_.plan;
    plan.steps = RandomSteps();
    if (!CanRunInSteps(plan.steps)) return;
    plan.stages = {Stage::kMasked, Stage::kWeights, Stage::kLse, Stage::kContext};
    ExpectSameRun("in chunks", whole_, harness_.Run(sequence_.input, plan));
    ++(*ratios_)["cases run in chunks"];
  }

  Dice dice_;
  RandomLayer layer_;
  RandomSequence sequence_;
  LayerHarness harness_;
  Ratios* ratios_;
  LayerRun whole_;
  reference::Output expected_;
};

TEST(RandomLayers, MatchTheReferenceAndThemselves) {
  const int64_t layers = FromEnvironment("ATTNSERVE_RANDOM_LAYERS", kDefaultLayers);
  const int64_t first = FromEnvironment("ATTNSERVE_RANDOM_SEED", 1);
  Ratios ratios;
  for (int64_t seed = first; seed < first + layers; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCase(static_cast<uint64_t>(seed), &ratios).Check();
    if (HasFailure()) return;
  }
  const double chunked = ratios["cases run in chunks"];
  ratios.erase("cases run in chunks");
  for (const auto& [what, ratio] : ratios) {
    std::cout << "largest error / bound of " << what << ": " << ratio << "\n";
    RecordProperty(what, std::to_string(ratio));
    EXPECT_LE(ratio, 1.0) << what;
    // A bound that no case comes near would hide errors.
    if (layers >= kDefaultLayers) {
      EXPECT_GE(ratio, 0.05) << what;
    }
  }
  if (layers >= kDefaultLayers) {
    EXPECT_GE(chunked, 0.3 * static_cast<double>(layers));
  }
}

}  // namespace
}  // namespace attnserve
