#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/attention/attention_layer_impl.h"
#include "lib/attention/dropout.h"
#include "lib/simd/vector_ops.h"

namespace attnserve {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

bool Visible(const simd::AttentionRow& row, int64_t key) {
  if (key >= row.key_end) return false;
  if ((key < row.begin || key >= row.end) && key >= row.sinks) return false;
  return row.mask == nullptr || ((row.mask[key / 64] >> (key % 64)) & 1) != 0;
}

// scores + bias + ALiBi, -inf where masked, in place; the kernel's order of operations.
void MaskScores(const simd::AttentionRow& row, const int64_t* key_positions, int64_t keys,
                float* scores) {
  for (int64_t key = 0; key < keys; ++key) {
    if (!Visible(row, key)) {
      scores[key] = kMinusInfinity;
      continue;
    }
    if (row.bias != nullptr) scores[key] += row.bias[key];
    if (row.alibi_slope != 0.0f) {
      const int64_t position = key_positions != nullptr ? key_positions[key] : key;
      scores[key] -= row.alibi_slope * static_cast<float>(std::abs(row.query_position - position));
    }
  }
}

void StoreStage(const StageTarget& target, int64_t at, const float* values, int64_t count) {
  simd::Narrow(
      values, count, target.dtype,
      static_cast<char*>(target.data) + at * static_cast<int64_t>(ElementSize(target.dtype)));
}

bool NeedsScores(const LayerPass& pass) {
  return std::any_of(pass.stages.begin(), pass.stages.end(), [](const StageTarget& target) {
    return target.stage != Stage::kLse && target.stage != Stage::kContext;
  });
}

}  // namespace

void AttendCore::WriteStages() {
  int64_t first_row = 0;
  for (const PassRows& range : ranges_) {
    const int64_t queries = range.end - range.begin;
    if (!range.pass->stages.empty()) {
      const int64_t operations = queries * spec_.query_width() * range.pass->cache->length();
      RunTasks(runner_, queries * spec_.head_count, operations, [&](int64_t task, int worker) {
        const int64_t index = task / spec_.head_count;
        WriteRowStages(*range.pass, range.begin + index, first_row + index, task % spec_.head_count,
                       workspace_.workers[static_cast<size_t>(worker)]);
      });
    }
    first_row += queries;
  }
}

void AttendCore::WriteRowStages(const LayerPass& pass, int64_t query, int64_t row, int64_t head,
                                AttendMemory& memory) const {
  const int64_t keys = pass.cache->length(), blocks = BlocksForTokens(keys);
  const int64_t queries = layer_.is_core() ? pass.query.tokens : pass.x.rows;
  const int64_t line = head * queries + query;
  const float lse = workspace_.lse.data()[row * spec_.head_count + head];
  const float* context =
      workspace_.contexts.data() + row * spec_.context_width() + head * spec_.value_head_size;
  for (const StageTarget& target : pass.stages) {
    if (target.stage == Stage::kLse) StoreStage(target, line, &lse, 1);
    if (target.stage == Stage::kContext) {
      StoreStage(target, line * spec_.value_head_size, context, spec_.value_head_size);
    }
  }
  if (!NeedsScores(pass)) return;

  const auto store = [&](Stage stage, const float* values) {
    for (const StageTarget& target : pass.stages) {
      if (target.stage == stage) StoreStage(target, line * keys, values, keys);
    }
  };
  const simd::AttentionParams params = Params(pass);
  float* scores = memory.scores.data();
  const float* vector = Query(pass, query, row, head);
  const int64_t kv_head = head / spec_.group_size();
  for (int64_t block = 0; block < blocks; ++block) {
    simd::BlockScores(params, vector, {pass.cache->keys(block, kv_head), nullptr, true},
                      scores + block * kTokensPerBlock);
  }
  store(Stage::kScores, scores);
  if (params.softcap > 0.0f) simd::SoftcapScores(params.softcap, keys, scores);
  store(Stage::kSoftcapped, scores);

  const RowVisibility visibility(spec_, pass);
  simd::AttentionRow visible;
  visibility.FillRange(head, query, &visible);
  if (visibility.needs_bits()) {
    visibility.FillBits(head, query, {0, blocks}, memory.bits.data());
    visible.mask = memory.bits.data();
  }
  if (visibility.needs_bias()) {
    visibility.FillBias(head, query, {0, blocks}, memory.bias.data());
    visible.bias = memory.bias.data();
  }
  MaskScores(visible, params.key_positions, keys, scores);
  store(Stage::kMasked, scores);

  for (int64_t key = 0; key < keys; ++key) {
    const bool masked = scores[key] == kMinusInfinity;
    scores[key] = masked ? kMinusInfinity : scores[key] - lse;
  }
  simd::Exp(scores, keys, scores);
  if (pass.dropout.p > 0.0f) {
    const float factor = 1.0f / (1.0f - pass.dropout.p);
    for (int64_t key = 0; key < keys; ++key) {
      const bool dropped = DropsWeight(pass.dropout, pass.dropout_stream, head, query, key);
      scores[key] = dropped ? 0.0f : scores[key] * factor;
    }
  }
  store(Stage::kWeights, scores);
}

}  // namespace attnserve
