#include <algorithm>
#include <array>
#include <limits>

#include "lib/attention/attention_layer_impl.h"

namespace attnserve {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void PrefetchForWriting(const char* begin, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(begin + at, 1);
}

}  // namespace

AttendCore::AttendCore(const AttentionLayer::Impl& layer, absl::Span<const PassRows> ranges,
                       int64_t query_stride, ParallelRunner& runner,
                       LayerWorkspace::Impl& workspace)
    : layer_(layer),
      spec_(layer.spec),
      ranges_(ranges),
      query_stride_(query_stride),
      runner_(runner),
      workspace_(workspace),
      partial_floats_(simd::PartialFloats(layer.spec.value_head_size)),
      keeps_contexts_(layer.output != nullptr ||
                      std::any_of(ranges.begin(), ranges.end(), [](const PassRows& range) {
                        return !range.pass->stages.empty();
                      })) {
  const int64_t rows = workspace.row_count;
  if (keeps_contexts_) {
    workspace.contexts.Reserve(static_cast<size_t>(rows * spec_.context_width()));
  }
  workspace.lse.Reserve(static_cast<size_t>(rows * spec_.head_count));
  MakeTasks();
  MakeJobs();
  ReserveWorkers();
}

void AttendCore::Run() {
  // Later queries see more keys: the longest jobs first, so that none is left over at the end.
  const int64_t last_job = static_cast<int64_t>(workspace_.jobs.size()) - 1;
  RunTasks(runner_, last_job + 1, operations_, [&](int64_t number, int worker) {
    const int64_t index = last_job - number;
    const AttendJob& job = workspace_.jobs[static_cast<size_t>(index)];
    AttendTask& task = workspace_.tasks[static_cast<size_t>(job.task)];
    AttendMemory& memory = workspace_.workers[static_cast<size_t>(worker)];
    PrepareRows(task, memory);
    if (job.stretch < 0) return AttendWhole(task, memory);
    const int64_t slot = task.first_partial + (job.stretch - task.stretch_begin) * Rows(task);
    workspace_.seen[static_cast<size_t>(index)] = AttendOneStretch(
        task, memory, job.stretch, workspace_.partials.data() + slot * partial_floats_);
  });
  RunTasks(runner_, static_cast<int64_t>(workspace_.split_tasks.size()), operations_,
           [&](int64_t index, int worker) {
             const int64_t task = workspace_.split_tasks[static_cast<size_t>(index)];
             MergeStretches(workspace_.tasks[static_cast<size_t>(task)],
                            workspace_.workers[static_cast<size_t>(worker)]);
           });
}

simd::AttentionParams AttendCore::Params(const LayerPass& pass) const {
  simd::AttentionParams params;
  params.key_head_size = spec_.key_head_size;
  params.value_head_size = spec_.value_head_size;
  params.cache_dtype = pass.cache->layout().dtype;
  params.scale = layer_.scale;
  params.softcap = spec_.attention.softcap;
  if (!pass.cache->positions().empty()) params.key_positions = pass.cache->positions().data();
  return params;
}

const float* AttendCore::Query(const LayerPass& pass, int64_t query, int64_t row,
                               int64_t head) const {
  if (TakesQueriesAsGiven(layer_, pass)) {
    return static_cast<const float*>(pass.query.data) + query * pass.query.token_stride +
           head * pass.query.head_stride;
  }
  return workspace_.queries.data() + row * query_stride_ + head * spec_.key_head_size;
}

// Fills memory.rows: queries of the task in order, each with the heads of the group. Rows that have
// the same mask share its memory. Packs their queries.
void AttendCore::PrepareRows(const AttendTask& task, AttendMemory& memory) const {
  const RowVisibility visibility(spec_, *task.pass);
  const int64_t group = spec_.group_size(), blocks = visibility.blocks();
  const int64_t masks_per_query = visibility.differs_by_head() ? group : 1;
  memory.rows.assign(static_cast<size_t>(Rows(task)), {});
  for (int64_t r = 0; r < Rows(task); ++r) {
    const int64_t query = r / group, member = r % group;
    const int64_t head = task.kv_head * group + member;
    simd::AttentionRow& out = memory.rows[static_cast<size_t>(r)];
    out.query = Query(*task.pass, task.query_begin + query, task.first_row + query, head);
    visibility.FillRange(head, task.query_begin + query, &out);
    const int64_t mask = (visibility.differs_by_query() ? query * masks_per_query : 0) +
                         (visibility.differs_by_head() ? member : 0);
    if (visibility.needs_bits()) out.mask = memory.bits.data() + mask * blocks;
    if (visibility.needs_bias()) out.bias = memory.bias.data() + mask * blocks * kTokensPerBlock;
    if (visibility.drops()) out.keep = memory.keep.data() + r * blocks;
  }
  simd::PackQueries(Params(*task.pass), memory.rows, memory.queries);
}

// Unpacks the masks of memory.rows for some blocks.
void AttendCore::FillMasks(const AttendTask& task, BlockRange range, AttendMemory& memory) const {
  const RowVisibility visibility(spec_, *task.pass);
  if (!visibility.needs_bits() && !visibility.drops()) return;
  const int64_t group = spec_.group_size(), blocks = visibility.blocks();
  int64_t mask = 0;
  for (int64_t r = 0; r < Rows(task); ++r) {
    const int64_t query = task.query_begin + r / group, member = r % group;
    const int64_t head = task.kv_head * group + member;
    const bool own_mask = (r < group || visibility.differs_by_query()) &&
                          (member == 0 || visibility.differs_by_head());
    if (visibility.needs_bits() && own_mask) {
      visibility.FillBits(head, query, range, memory.bits.data() + mask * blocks);
      if (visibility.needs_bias()) {
        visibility.FillBias(head, query, range,
                            memory.bias.data() + mask * blocks * kTokensPerBlock);
      }
      ++mask;
    }
    if (visibility.drops()) {
      visibility.FillKeep(head, query, range, memory.keep.data() + r * blocks);
    }
  }
}

// One stretch for memory.rows; false if no row sees any of its keys.
bool AttendCore::AttendOneStretch(const AttendTask& task, AttendMemory& memory, int64_t stretch,
                                  float* partials) const {
  const KvSequence& cache = *task.pass->cache;
  const int64_t first = stretch * simd::kBlocksPerStretch;
  const BlockRange range = {
      first, std::min(simd::kBlocksPerStretch, BlocksForTokens(cache.length()) - first)};
  const auto reaches = [&](const simd::AttentionRow& row) {
    return RangeReachesBlocks(row, range);
  };
  const auto sees = [&](const simd::AttentionRow& row) {
    return simd::RowSeesBlocks(row, range.first, range.count);
  };
  if (std::none_of(memory.rows.begin(), memory.rows.end(), reaches)) return false;
  FillMasks(task, range, memory);
  if (std::none_of(memory.rows.begin(), memory.rows.end(), sees)) return false;

  std::array<simd::KvHeadBlock, simd::kBlocksPerStretch> blocks;
  for (int64_t i = 0; i < range.count; ++i) {
    blocks[static_cast<size_t>(i)] = {cache.keys(first + i, task.kv_head),
                                      cache.values(first + i, task.kv_head),
                                      cache.values_finite(first + i, task.kv_head)};
  }
  simd::AttendStretch(Params(*task.pass), memory.rows, memory.queries, first,
                      absl::MakeSpan(blocks.data(), static_cast<size_t>(range.count)), partials,
                      memory.scratch);
  return true;
}

void AttendCore::AttendWhole(AttendTask& task, AttendMemory& memory) {
  float* const total = memory.total;
  bool any = false;
  for (int64_t stretch = task.stretch_begin; stretch < task.stretch_end; ++stretch) {
    float* const partial = any ? memory.partial : total;
    if (!AttendOneStretch(task, memory, stretch, partial)) continue;
    for (int64_t r = 0; any && r < Rows(task); ++r) {
      const int64_t at = r * partial_floats_;
      simd::MergePartial(spec_.value_head_size, partial + at, total + at);
    }
    any = true;
  }
  FinishTask(task, any ? total : nullptr, memory);
}

// Merges the stretches of a split task, ascending, as AttendWhole does.
void AttendCore::MergeStretches(AttendTask& task, AttendMemory& memory) {
  float* const first = workspace_.partials.data() + task.first_partial * partial_floats_;
  float* total = nullptr;
  for (int64_t i = 0; i < task.stretches(); ++i) {
    if (workspace_.seen[static_cast<size_t>(task.first_job + i)] == 0) continue;
    float* const next = first + i * Rows(task) * partial_floats_;
    for (int64_t r = 0; total != nullptr && r < Rows(task); ++r) {
      const int64_t at = r * partial_floats_;
      simd::MergePartial(spec_.value_head_size, next + at, total + at);
    }
    if (total == nullptr) total = next;
  }
  FinishTask(task, total, memory);
}

void AttendCore::FinishTask(AttendTask& task, const float* totals, AttendMemory& memory) {
  const int64_t group = spec_.group_size(), size = spec_.value_head_size;
  const std::vector<float>& sinks = spec_.attention.sink_logits;
  const float p = task.pass->dropout.p;
  const float value_factor = p > 0.0f ? 1.0f / (1.0f - p) : 1.0f;
  const OutputTarget& output = task.pass->output;
  const int64_t output_bytes = size * static_cast<int64_t>(ElementSize(output.dtype));
  constexpr int64_t kRowsAhead = 4;  // whose place in the output is fetched
  for (int64_t r = 0; r < Rows(task); ++r) {
    const int64_t head = task.kv_head * group + r % group;
    const int64_t row = task.first_row + r / group;
    float* const context =
        keeps_contexts_ ? workspace_.contexts.data() + row * spec_.context_width() + head * size
                        : memory.context;
    float& lse = workspace_.lse.data()[row * spec_.head_count + head];
    if (totals == nullptr) {
      std::fill_n(context, size, 0.0f);
      lse = kMinusInfinity;
    } else {
      const float sink = sinks.empty() ? kMinusInfinity : sinks[static_cast<size_t>(head)];
      lse = simd::FinishRow(size, totals + r * partial_floats_, sink, value_factor, context);
    }
    if (layer_.output != nullptr) continue;
    if (const int64_t ahead = r + kRowsAhead; ahead < Rows(task)) {
      PrefetchForWriting(OutputAddress(output, task.query_begin + ahead / group,
                                       task.kv_head * group + ahead % group),
                         output_bytes);
    }
    task.nonfinite_values +=
        WriteOutput(*task.pass, task.query_begin + r / group, head, context, size);
  }
}

void AttendCore::Count() {
  const float* lse = workspace_.lse.data();
  for (const PassRows& range : ranges_) {
    for (int64_t query = range.begin; query < range.end; ++query, lse += spec_.head_count) {
      if (IsPaddingQuery(range.pass->masks, query)) continue;
      range.pass->masked_rows += std::count(lse, lse + spec_.head_count, kMinusInfinity);
    }
  }
  for (const AttendTask& task : workspace_.tasks) {
    task.pass->nonfinite_values += task.nonfinite_values;
  }
}

}  // namespace attnserve
