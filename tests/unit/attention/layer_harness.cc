#include "tests/unit/attention/layer_harness.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "gtest/gtest.h"
#include "tests/unit/attention/typed_elements.h"

namespace attnserve {
namespace {

using reference::Values;

constexpr int64_t kPoolBytes = int64_t{1} << 30;

size_t At(int64_t index) { return static_cast<size_t>(index); }

WeightView ViewOf(const Elements& elements, int64_t in, int64_t out, bool transposed) {
  WeightView view;
  view.dtype = elements.dtype();
  view.data = elements.at(0);
  view.in = in;
  view.out = out;
  view.in_stride = transposed ? 1 : out;
  view.out_stride = transposed ? in : 1;
  return view;
}

std::vector<float> Floats(const Values& values) {
  return std::vector<float>(values.begin(), values.end());
}

absl::StatusOr<std::unique_ptr<AttentionLayer>> CreateModelLayer(const LayerSpec& spec,
                                                                 const reference::Weights& weights,
                                                                 WeightForm form,
                                                                 GemmBackend backend) {
  const int64_t source =
      spec.kind == LayerKind::kCrossAttention ? spec.context_size : spec.input_size;
  const auto stored = [&](const Values& weight, int64_t in, int64_t out) {
    return Elements(form.dtype, form.transposed && !weight.empty()
                                    ? SwapTokensAndHeads(weight, in, out, 1)
                                    : weight);
  };
  const Elements query = stored(weights.query, spec.input_size, spec.query_width());
  const Elements key = stored(weights.key, source, spec.key_width());
  const Elements value = stored(weights.value, source, spec.value_width());
  const Elements output = stored(weights.output, spec.context_width(), spec.output_size);
  LayerWeights views;
  views.query = ViewOf(query, spec.input_size, spec.query_width(), form.transposed);
  views.key = ViewOf(key, source, spec.key_width(), form.transposed);
  views.value = ViewOf(value, source, spec.value_width(), form.transposed);
  if (spec.output_projection) {
    views.output = ViewOf(output, spec.context_width(), spec.output_size, form.transposed);
  }
  views.query_bias = Floats(weights.query_bias);
  views.key_bias = Floats(weights.key_bias);
  views.value_bias = Floats(weights.value_bias);
  views.output_bias = Floats(weights.output_bias);
  return AttentionLayer::Create(spec, views, backend);
}

// Cuts [0, rows) into pieces of the given sizes, repeated; last piece first, so that order shows.
std::vector<std::pair<int64_t, int64_t>> Pieces(int64_t rows, const std::vector<int64_t>& sizes) {
  std::vector<std::pair<int64_t, int64_t>> pieces;
  size_t i = 0;
  for (int64_t begin = 0; begin < rows; ++i) {
    const int64_t size = sizes.empty() ? rows : sizes[i % sizes.size()];
    pieces.emplace_back(begin, std::min(rows, begin + size));
    begin += size;
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

}  // namespace

LayerHarness::LayerHarness(LayerSpec spec, const reference::Weights& weights, WeightForm form,
                           GemmBackend backend)
    : spec_(std::move(spec)), pool_(kPoolBytes) {
  const absl::Status complete = CompleteLayerSpec("layer", &spec_);
  EXPECT_TRUE(complete.ok()) << complete;
  if (!complete.ok()) return;
  absl::StatusOr<std::unique_ptr<AttentionLayer>> layer =
      spec_.kind == LayerKind::kCoreAttention ? AttentionLayer::CreateCore(spec_)
                                              : CreateModelLayer(spec_, weights, form, backend);
  EXPECT_TRUE(layer.ok()) << layer.status();
  if (layer.ok()) layer_ = *std::move(layer);
}

LayerHarness::~LayerHarness() { EXPECT_EQ(pool_.usage().charged_bytes, 0); }

void LayerHarness::Append(const std::vector<SequenceRun*>& sequences, const RunPlan& plan) {
  InlineRunner here;
  ParallelRunner& runner = plan.runner != nullptr ? *plan.runner : here;
  std::vector<PassRows> rows;
  for (SequenceRun* sequence : sequences) {
    for (const auto& [begin, end] : Pieces(sequence->key_rows(), plan.key_rows)) {
      rows.push_back({&sequence->pass(), begin, end});
    }
  }
  if (plan.key_rows.empty()) {
    const absl::Status status = layer_->AppendKeys(rows, runner, workspace_);
    ASSERT_TRUE(status.ok()) << status;
    return;
  }
  for (const PassRows& piece : rows) {
    const absl::Status status = layer_->AppendKeys({piece}, runner, workspace_);
    ASSERT_TRUE(status.ok()) << status;
  }
}

void LayerHarness::Attend(const std::vector<SequenceRun*>& sequences, const RunPlan& plan) {
  InlineRunner here;
  ParallelRunner& runner = plan.runner != nullptr ? *plan.runner : here;
  std::vector<PassRows> rows;
  for (SequenceRun* sequence : sequences) {
    for (const auto& [begin, end] : Pieces(sequence->query_rows(), plan.query_rows)) {
      rows.push_back({&sequence->pass(), begin, end});
    }
  }
  if (plan.query_rows.empty()) {
    const absl::Status status = layer_->Attend(rows, runner, workspace_);
    ASSERT_TRUE(status.ok()) << status;
    return;
  }
  for (const PassRows& piece : rows) {
    const absl::Status status = layer_->Attend({piece}, runner, workspace_);
    ASSERT_TRUE(status.ok()) << status;
  }
}

LayerRun LayerHarness::Run(const reference::Input& input, const RunPlan& plan) {
  SequenceRun sequence(*layer_, &pool_, input, plan);
  std::vector<Step> steps = plan.steps;
  if (steps.empty()) steps.push_back({0, input.query_count});
  for (const Step& step : steps) {
    sequence.Begin(step);
    Append({&sequence}, plan);
    Attend({&sequence}, plan);
    if (!step.junk) sequence.End();
  }
  return sequence.Finish();
}

std::vector<LayerRun> LayerHarness::RunTogether(const std::vector<const reference::Input*>& inputs,
                                                const std::vector<const RunPlan*>& plans) {
  std::vector<std::unique_ptr<SequenceRun>> sequences;
  std::vector<SequenceRun*> pointers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    sequences.push_back(std::make_unique<SequenceRun>(*layer_, &pool_, *inputs[i], *plans[i]));
    sequences.back()->Begin({0, inputs[i]->query_count});
    pointers.push_back(sequences.back().get());
  }
  Append(pointers, *plans[0]);
  Attend(pointers, *plans[0]);
  std::vector<LayerRun> runs;
  for (const auto& sequence : sequences) {
    sequence->End();
    runs.push_back(sequence->Finish());
  }
  return runs;
}

void ShuffledRunner::Run(int64_t task_count,
                         absl::FunctionRef<void(int64_t task, int worker)> body) {
  std::vector<int64_t> tasks(At(task_count));
  std::iota(tasks.begin(), tasks.end(), int64_t{0});
  std::mt19937_64 random(++state_);
  std::shuffle(tasks.begin(), tasks.end(), random);
  for (const int64_t task : tasks) body(task, static_cast<int>(random() % 3));
}

}  // namespace attnserve
