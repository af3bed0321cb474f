#include "tests/unit/attention/layer_harness.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "gtest/gtest.h"
#include "lib/base/tensor.h"
#include "lib/cache/kv_sequence.h"

namespace attnserve {
namespace {

using reference::Values;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kPoolBytes = int64_t{1} << 30;

size_t At(int64_t index) { return static_cast<size_t>(index); }

// Elements of one float type in memory, one element past an aligned address: nothing may rely on
// the alignment of a caller's tensor.
class Elements {
 public:
  Elements() = default;
  Elements(DType dtype, const Values& values) : Elements(dtype, values.size()) {
    for (size_t i = 0; i < values.size(); ++i) Store(i, values[i]);
  }
  Elements(DType dtype, size_t count)
      : dtype_(dtype), bytes_((count + 1) * ElementSize(dtype), 0xff) {}

  DType dtype() const { return dtype_; }
  void* data() { return bytes_.data() + ElementSize(dtype_); }
  const void* at(int64_t index) const {
    return bytes_.data() + (At(index) + 1) * ElementSize(dtype_);
  }
  double Load(size_t index) const {
    float value = 0.0f;
    LoadAsF32(dtype_, at(static_cast<int64_t>(index)), 1, &value);
    return static_cast<double>(value);
  }

 private:
  void Store(size_t index, double value) {
    const float narrow = static_cast<float>(value);
    StoreFromF32(&narrow, 1, dtype_, bytes_.data() + (index + 1) * ElementSize(dtype_));
  }

  DType dtype_ = DType::kF32;
  std::vector<uint8_t> bytes_;
};

// [tokens, heads, size] to [heads, tokens, size], or back with the counts swapped.
Values SwapTokensAndHeads(const Values& values, int64_t tokens, int64_t heads, int64_t size) {
  Values swapped(values.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t e = 0; e < size; ++e) {
        swapped[At((h * tokens + t) * size + e)] = values[At((t * heads + h) * size + e)];
      }
    }
  }
  return swapped;
}

Values Rows(const Values& values, int64_t width, int64_t begin, int64_t end) {
  return Values(values.begin() + begin * width, values.begin() + end * width);
}

std::vector<uint8_t> Bytes(const std::vector<bool>& bits) {
  return std::vector<uint8_t>(bits.begin(), bits.end());
}

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

bool PerKey(Stage stage) { return stage != Stage::kLse && stage != Stage::kContext; }

double Absent(Stage stage) {
  if (stage == Stage::kMasked) return -kInfinity;
  return stage == Stage::kWeights ? 0.0 : kNan;
}

}  // namespace

// One sequence on its way through the layer: the cache, the current pass and all its memory.
class LayerHarness::Sequence {
 public:
  Sequence(LayerHarness& harness, const reference::Input& input, const RunPlan& plan)
      : spec_(harness.spec_),
        layer_(*harness.layer_),
        input_(input),
        plan_(plan),
        cache_(harness.layer_->kv_layout(), &harness.pool_),
        past_(static_cast<int64_t>(input.past_key.size()) / spec_.key_width()),
        added_(NewKeys()) {
    run_.output.assign(At(input.query_count * OutputWidth()), kNan);
    const int64_t rows = spec_.head_count * input.query_count;
    for (const Stage stage : plan.stages) {
      const int64_t width = PerKey(stage)          ? past_ + added_
                            : stage == Stage::kLse ? 1
                                                   : spec_.value_head_size;
      run_.stages[stage].assign(At(rows * width), Absent(stage));
    }
    WritePast();
  }

  // Prepares the pass over queries [begin, end): room in the cache, inputs, masks, targets.
  void Begin(const Step& step) {
    begin_ = step.begin;
    end_ = step.end;
    pass_.emplace();
    pass_->cache = &cache_;
    const bool cross = spec_.kind == LayerKind::kCrossAttention;
    const bool steps = !plan_.steps.empty();
    if (cross) {
      first_key_ = cache_.length() == past_ ? 0 : added_;
      last_key_ = added_;
    } else {
      first_key_ = steps ? step.begin : 0;
      last_key_ = steps ? step.end : added_;
      if (cache_.length() > past_ + first_key_) cache_.Truncate(past_ + first_key_);
    }
    pass_->past_tokens = past_ + first_key_;
    ASSERT_EQ(cache_.length(), pass_->past_tokens);
    const int64_t fresh = last_key_ - first_key_;
    ASSERT_TRUE(cache_.Reserve(cache_.length() + fresh).ok());
    const bool positioned = !input_.past_positions.empty() || !input_.key_positions.empty();
    key_positions_.clear();
    for (int64_t i = first_key_; i < last_key_ && positioned; ++i) {
      key_positions_.push_back(input_.key_positions.empty() ? past_ + i
                                                            : input_.key_positions[At(i)]);
    }
    cache_.Extend(fresh, positioned ? key_positions_.data() : nullptr);
    SetInputs(step.junk);
    SetPositions();
    SetMasks();
    SetTargets();
  }

  LayerPass& pass() { return *pass_; }

  // Reads what the pass wrote.
  void End() {
    const int64_t queries = end_ - begin_;
    const int64_t width = OutputWidth();
    Values rows(At(queries * width));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = output_.Load(i);
    if (HeadMajorOutput()) {
      rows = SwapTokensAndHeads(rows, spec_.head_count, queries, spec_.value_head_size);
    }
    std::copy(rows.begin(), rows.end(), run_.output.begin() + begin_ * width);
    for (size_t i = 0; i < plan_.stages.size(); ++i) ScatterStage(plan_.stages[i], stages_[i]);
    run_.masked_rows += pass_->masked_rows;
    run_.nonfinite_values += pass_->nonfinite_values;
  }

  LayerRun Finish() {
    std::vector<float> key(At(spec_.key_head_size)), value(At(spec_.value_head_size));
    for (int64_t t = 0; t < cache_.length(); ++t) {
      for (int64_t g = 0; g < spec_.kv_head_count; ++g) {
        cache_.ReadToken(t, g, key.data(), value.data());
        run_.present_key.insert(run_.present_key.end(), key.begin(), key.end());
        run_.present_value.insert(run_.present_value.end(), value.begin(), value.end());
      }
    }
    return std::move(run_);
  }

  int64_t key_rows() const { return layer_.key_rows(*pass_); }
  int64_t query_rows() const { return layer_.query_rows(*pass_); }

 private:
  int64_t NewKeys() const {
    switch (spec_.kind) {
      case LayerKind::kSelfAttention:
        return input_.query_count;
      case LayerKind::kCrossAttention:
        return static_cast<int64_t>(input_.context.size()) / spec_.context_size;
      case LayerKind::kCoreAttention:
        return static_cast<int64_t>(input_.key.size()) / spec_.key_width();
    }
    return 0;
  }

  int64_t OutputWidth() const { return spec_.output_size; }
  bool HeadMajorOutput() const {
    return plan_.head_major && spec_.kind == LayerKind::kCoreAttention;
  }

  void WritePast() {
    if (past_ == 0) return;
    ASSERT_TRUE(cache_.Reserve(past_).ok());
    cache_.Extend(past_, input_.past_positions.empty() ? nullptr : input_.past_positions.data());
    const Elements keys(DType::kF32, input_.past_key);
    const Elements values(DType::kF32, input_.past_value);
    cache_.WriteTokens(0, TokenMajor(keys, past_, spec_.kv_head_count, spec_.key_head_size),
                       TokenMajor(values, past_, spec_.kv_head_count, spec_.value_head_size), 0,
                       spec_.kv_head_count);
  }

  static HeadsView TokenMajor(const Elements& elements, int64_t tokens, int64_t heads,
                              int64_t size) {
    return {elements.dtype(), elements.at(0), tokens, heads, size, heads * size, size};
  }

  // Elements and view of rows [begin, end) of [tokens, heads, size] in the plan's form.
  HeadsView SetHeads(const Values& all, int64_t heads, int64_t size, int64_t begin, int64_t end,
                     bool junk, Elements* elements) {
    Values rows = Rows(all, heads * size, begin, end);
    if (junk) std::fill(rows.begin(), rows.end(), kNan);
    const int64_t tokens = end - begin;
    if (!plan_.head_major) {
      *elements = Elements(plan_.io_dtype, rows);
      return TokenMajor(*elements, tokens, heads, size);
    }
    *elements = Elements(plan_.io_dtype, SwapTokensAndHeads(rows, tokens, heads, size));
    return {plan_.io_dtype, elements->at(0), tokens, heads, size, size, tokens * size};
  }

  RowsView SetRows(const Values& all, int64_t width, int64_t begin, int64_t end, bool junk,
                   Elements* elements) {
    Values rows = Rows(all, width, begin, end);
    if (junk) std::fill(rows.begin(), rows.end(), kNan);
    *elements = Elements(plan_.io_dtype, rows);
    return {plan_.io_dtype, elements->at(0), end - begin, width};
  }

  void SetInputs(bool junk) {
    if (spec_.kind == LayerKind::kCoreAttention) {
      pass_->query =
          SetHeads(input_.query, spec_.head_count, spec_.key_head_size, begin_, end_, junk, &x_);
      pass_->key = SetHeads(input_.key, spec_.kv_head_count, spec_.key_head_size, first_key_,
                            last_key_, junk, &key_);
      pass_->value = SetHeads(input_.value, spec_.kv_head_count, spec_.value_head_size, first_key_,
                              last_key_, junk, &value_);
      return;
    }
    pass_->x = SetRows(input_.x, spec_.input_size, begin_, end_, junk, &x_);
    if (spec_.kind == LayerKind::kCrossAttention && last_key_ > first_key_) {
      pass_->context =
          SetRows(input_.context, spec_.context_size, first_key_, last_key_, false, &key_);
    }
  }

  void SetPositions() {
    if (!input_.query_positions.empty()) {
      pass_->query_positions = input_.query_positions.data() + begin_;
    }
    pass_->query_position_base = input_.causal_offset + begin_;
    if (!key_positions_.empty()) pass_->key_positions = key_positions_.data();
    pass_->key_position_base = past_ + first_key_;
  }

  void SetMasks() {
    SequenceMasks& masks = pass_->masks;
    masks.causal_offset = input_.causal_offset + begin_;
    masks.valid_keys = input_.valid_keys;
    key_mask_ = Bytes(input_.key_mask);
    if (!key_mask_.empty()) masks.key_mask = key_mask_.data();
    tree_mask_ = Bytes(input_.tree_mask);
    if (!tree_mask_.empty()) masks.tree_mask = tree_mask_.data();
    query_mask_.clear();
    for (const bool padding : input_.query_padding) query_mask_.push_back(padding ? 0 : 1);
    if (!query_mask_.empty() && plan_.padding_as_length) {
      const int64_t valid = std::count(query_mask_.begin(), query_mask_.end(), 1);
      masks.valid_queries = std::clamp(valid - begin_, int64_t{0}, end_ - begin_);
    } else if (!query_mask_.empty()) {
      masks.query_mask = query_mask_.data() + begin_;
    }
    SetAttentionMask(&masks.attention_mask);
  }

  void SetAttentionMask(AttentionMaskView* view) {
    const bool boolean = !input_.bool_mask.empty();
    if (!boolean && input_.additive_mask.empty()) return;
    const int64_t queries = input_.query_count;
    const int64_t keys = past_ + added_;
    const int64_t mask_heads = plan_.mask_broadcast_heads ? 1 : spec_.head_count;
    const int64_t mask_queries = plan_.mask_broadcast_queries ? 1 : queries;
    const int64_t held = plan_.mask_keys >= 0 ? plan_.mask_keys : keys;
    const int64_t mask_keys = plan_.mask_broadcast_keys ? std::min<int64_t>(keys, 1) : held;
    Values compact;
    bool_mask_.clear();
    for (int64_t h = 0; h < mask_heads; ++h) {
      for (int64_t i = 0; i < mask_queries; ++i) {
        for (int64_t j = 0; j < mask_keys; ++j) {
          const size_t place = At((h * queries + i) * keys + j);
          if (boolean) bool_mask_.push_back(input_.bool_mask[place] ? 1 : 0);
          if (boolean) continue;
          const double value = input_.additive_mask[place];
          const bool masked = value == -kInfinity && plan_.mask_lowest;
          compact.push_back(masked ? static_cast<double>(LowestFinite(plan_.mask_dtype)) : value);
        }
      }
    }
    view->dtype = boolean ? DType::kBool : plan_.mask_dtype;
    view->key_stride = plan_.mask_broadcast_keys ? 0 : 1;
    view->query_stride = plan_.mask_broadcast_queries ? 0 : mask_keys;
    view->head_stride = plan_.mask_broadcast_heads ? 0 : mask_queries * mask_keys;
    view->key_count = std::min(mask_keys, cache_.length());
    const int64_t skipped = begin_ * view->query_stride;
    if (boolean) {
      view->data = bool_mask_.data() + skipped;
    } else {
      float_mask_ = Elements(plan_.mask_dtype, compact);
      view->data = float_mask_.at(skipped);
    }
  }

  void SetTargets() {
    const int64_t queries = end_ - begin_;
    output_ = Elements(plan_.output_dtype, At(queries * OutputWidth()));
    pass_->output.dtype = plan_.output_dtype;
    pass_->output.data = output_.data();
    pass_->output.token_stride = HeadMajorOutput() ? spec_.value_head_size : OutputWidth();
    pass_->output.head_stride =
        HeadMajorOutput() ? queries * spec_.value_head_size : spec_.value_head_size;
    stages_.clear();
    stages_.reserve(plan_.stages.size());
    for (const Stage stage : plan_.stages) {
      stages_.emplace_back(plan_.stage_dtype, At(spec_.head_count * queries * StageWidth(stage)));
      pass_->stages.push_back({stage, plan_.stage_dtype, stages_.back().data()});
    }
    pass_->dropout = plan_.dropout;
    pass_->dropout_stream = plan_.dropout_stream;
  }

  int64_t StageWidth(Stage stage) const {
    if (PerKey(stage)) return cache_.length();
    return stage == Stage::kLse ? 1 : spec_.value_head_size;
  }

  void ScatterStage(Stage stage, const Elements& from) {
    const int64_t width = StageWidth(stage);
    const int64_t full = PerKey(stage) ? past_ + added_ : width;
    const int64_t queries = end_ - begin_;
    Values& to = run_.stages[stage];
    for (int64_t h = 0; h < spec_.head_count; ++h) {
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t row = h * input_.query_count + begin_ + i;
        for (int64_t j = 0; j < full; ++j) {
          to[At(row * full + j)] =
              j < width ? from.Load(At((h * queries + i) * width + j)) : Absent(stage);
        }
      }
    }
  }

  const LayerSpec& spec_;
  const AttentionLayer& layer_;
  const reference::Input& input_;
  const RunPlan& plan_;
  KvSequence cache_;
  int64_t past_;   // P
  int64_t added_;  // N
  LayerRun run_;

  std::optional<LayerPass> pass_;
  int64_t begin_ = 0, end_ = 0;           // queries of the pass
  int64_t first_key_ = 0, last_key_ = 0;  // its new keys, counted from past_
  Elements x_, key_, value_, output_, float_mask_;
  std::vector<Elements> stages_;
  std::vector<int64_t> key_positions_;
  std::vector<uint8_t> key_mask_, tree_mask_, query_mask_, bool_mask_;
};

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

void LayerHarness::Append(std::vector<Sequence*> sequences, const RunPlan& plan) {
  InlineRunner here;
  ParallelRunner& runner = plan.runner != nullptr ? *plan.runner : here;
  std::vector<PassRows> rows;
  for (Sequence* sequence : sequences) {
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

void LayerHarness::Attend(std::vector<Sequence*> sequences, const RunPlan& plan) {
  InlineRunner here;
  ParallelRunner& runner = plan.runner != nullptr ? *plan.runner : here;
  std::vector<PassRows> rows;
  for (Sequence* sequence : sequences) {
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
  Sequence sequence(*this, input, plan);
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
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Sequence*> pointers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    sequences.push_back(std::make_unique<Sequence>(*this, *inputs[i], *plans[i]));
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
