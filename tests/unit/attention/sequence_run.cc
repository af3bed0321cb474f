#include "tests/unit/attention/sequence_run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "gtest/gtest.h"
#include "lib/base/tensor.h"

namespace attnserve {
namespace {

using reference::Values;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t At(int64_t index) { return static_cast<size_t>(index); }

Values Rows(const Values& values, int64_t width, int64_t begin, int64_t end) {
  return Values(values.begin() + begin * width, values.begin() + end * width);
}

std::vector<uint8_t> Bytes(const std::vector<bool>& bits) {
  return std::vector<uint8_t>(bits.begin(), bits.end());
}

bool PerKey(Stage stage) { return stage != Stage::kLse && stage != Stage::kContext; }

double Absent(Stage stage) {
  if (stage == Stage::kMasked) return -kInfinity;
  return stage == Stage::kWeights ? 0.0 : kNan;
}

HeadsView TokenMajor(const Elements& elements, int64_t tokens, int64_t heads, int64_t size) {
  return {elements.dtype(), elements.at(0), tokens, heads, size, heads * size, size};
}

}  // namespace

SequenceRun::SequenceRun(const AttentionLayer& layer, KvBlockPool* pool,
                         const reference::Input& input, const RunPlan& plan)
    : layer_(layer),
      spec_(layer.spec()),
      input_(input),
      plan_(plan),
      cache_(layer.kv_layout(), pool),
      past_(static_cast<int64_t>(input.past_key.size()) / spec_.key_width()),
      added_(NewKeys()) {
  run_.output.assign(At(input.query_count * spec_.output_size), kNan);
  const int64_t rows = spec_.head_count * input.query_count;
  for (const Stage stage : plan.stages) {
    run_.stages[stage].assign(At(rows * StageWidth(stage, past_ + added_)), Absent(stage));
  }
  WritePast();
}

void SequenceRun::Begin(const Step& step) {
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

void SequenceRun::End() {
  const int64_t queries = end_ - begin_;
  const int64_t width = spec_.output_size;
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

LayerRun SequenceRun::Finish() {
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

int64_t SequenceRun::NewKeys() const {
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

bool SequenceRun::HeadMajorOutput() const {
  return plan_.head_major && spec_.kind == LayerKind::kCoreAttention;
}

void SequenceRun::WritePast() {
  if (past_ == 0) return;
  ASSERT_TRUE(cache_.Reserve(past_).ok());
  cache_.Extend(past_, input_.past_positions.empty() ? nullptr : input_.past_positions.data());
  const Elements keys(DType::kF32, input_.past_key);
  const Elements values(DType::kF32, input_.past_value);
  cache_.WriteTokens(0, TokenMajor(keys, past_, spec_.kv_head_count, spec_.key_head_size),
                     TokenMajor(values, past_, spec_.kv_head_count, spec_.value_head_size), 0,
                     spec_.kv_head_count);
}

HeadsView SequenceRun::SetHeads(const Values& all, int64_t heads, int64_t size, int64_t begin,
                                int64_t end, bool junk, Elements* elements) const {
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

RowsView SequenceRun::SetRows(const Values& all, int64_t width, int64_t begin, int64_t end,
                              bool junk, Elements* elements) const {
  Values rows = Rows(all, width, begin, end);
  if (junk) std::fill(rows.begin(), rows.end(), kNan);
  *elements = Elements(plan_.io_dtype, rows);
  return {plan_.io_dtype, elements->at(0), end - begin, width};
}

void SequenceRun::SetInputs(bool junk) {
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

void SequenceRun::SetPositions() {
  if (!input_.query_positions.empty()) {
    pass_->query_positions = input_.query_positions.data() + begin_;
  }
  pass_->query_position_base = input_.causal_offset + begin_;
  if (!key_positions_.empty()) pass_->key_positions = key_positions_.data();
  pass_->key_position_base = past_ + first_key_;
}

void SequenceRun::SetMasks() {
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

void SequenceRun::SetAttentionMask(AttentionMaskView* view) {
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

void SequenceRun::SetTargets() {
  const int64_t queries = end_ - begin_;
  output_ = Elements(plan_.output_dtype, At(queries * spec_.output_size));
  pass_->output.dtype = plan_.output_dtype;
  pass_->output.data = output_.data();
  pass_->output.token_stride = HeadMajorOutput() ? spec_.value_head_size : spec_.output_size;
  pass_->output.head_stride =
      HeadMajorOutput() ? queries * spec_.value_head_size : spec_.value_head_size;
  stages_.clear();
  stages_.reserve(plan_.stages.size());
  for (const Stage stage : plan_.stages) {
    stages_.emplace_back(plan_.stage_dtype,
                         At(spec_.head_count * queries * StageWidth(stage, cache_.length())));
    pass_->stages.push_back({stage, plan_.stage_dtype, stages_.back().data()});
  }
  pass_->dropout = plan_.dropout;
  pass_->dropout_stream = plan_.dropout_stream;
}

int64_t SequenceRun::StageWidth(Stage stage, int64_t keys) const {
  if (PerKey(stage)) return keys;
  return stage == Stage::kLse ? 1 : spec_.value_head_size;
}

void SequenceRun::ScatterStage(Stage stage, const Elements& from) {
  const int64_t width = StageWidth(stage, cache_.length());
  const int64_t full = StageWidth(stage, past_ + added_);
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

}  // namespace attnserve
