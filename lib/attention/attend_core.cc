#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/attention/attention_layer_impl.h"
#include "lib/attention/row_visibility.h"

namespace attnserve {
namespace {

// Queries a task has: with their group's heads enough rows to use a block of keys well, and few
// enough that all workers have something to do.
constexpr int64_t kTaskRows = 192;
// Stretches are shared out between workers while tasks are fewer than this many for each.
constexpr int64_t kTasksPerWorker = 2;
// Memory that shared-out stretches may keep their partial results in, in floats.
constexpr int64_t kMostPartialFloats = int64_t{16} << 20;
// Memory of masks that one task may unpack, in floats.
constexpr int64_t kMostBiasFloats = int64_t{1} << 18;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

AttendCore::AttendCore(const AttentionLayer::Impl& layer, absl::Span<const PassRows> ranges,
                       int64_t query_stride, ParallelRunner& runner,
                       LayerWorkspace::Impl& workspace)
    : layer_(layer),
      spec_(layer.spec),
      ranges_(ranges),
      query_stride_(query_stride),
      runner_(runner),
      workspace_(workspace) {
  const size_t workers = static_cast<size_t>(runner.worker_count());
  if (workspace.workers.size() < workers) workspace.workers.resize(workers);
  const int64_t rows = workspace.row_count;
  workspace.contexts.Reserve(static_cast<size_t>(rows * spec_.context_width()));
  workspace.lse.Reserve(static_cast<size_t>(rows * spec_.head_count));
}

void AttendCore::MakeTasks() {
  const int64_t group = spec_.group_size();
  workspace_.tasks.clear();
  int64_t row = 0, partial_row = 0;
  for (const PassRows& range : ranges_) {
    const RowVisibility visibility(spec_, *range.pass);
    int64_t tile = std::max<int64_t>(1, kTaskRows / group);
    if (visibility.needs_bits()) {
      const int64_t bias = std::max<int64_t>(1, group * visibility.keys());
      tile = std::clamp<int64_t>(kMostBiasFloats / bias, 1, tile);
    }
    for (int64_t begin = range.begin; begin < range.end; begin += tile) {
      const int64_t end = std::min(range.end, begin + tile);
      for (int64_t head = 0; head < spec_.kv_head_count; ++head) {
        workspace_.tasks.push_back({range.pass, head, begin, end, row, partial_row});
        partial_row += (end - begin) * group;
      }
      row += end - begin;
    }
  }
  task_rows_ = partial_row;
}

void AttendCore::Run() {
  MakeTasks();
  int64_t stretches = 0;
  for (const PassRows& range : ranges_) {
    const int64_t blocks = BlocksForTokens(range.pass->cache->length());
    stretches =
        std::max(stretches, (blocks + simd::kBlocksPerStretch - 1) / simd::kBlocksPerStretch);
  }
  const int64_t tasks = static_cast<int64_t>(workspace_.tasks.size());
  const bool few = tasks < runner_.worker_count() * kTasksPerWorker && runner_.worker_count() > 1;
  const int64_t floats = task_rows_ * stretches * simd::PartialFloats(spec_.value_head_size);
  if (few && stretches > 1 && floats <= kMostPartialFloats) {
    RunSplitTasks(stretches);
  } else {
    RunWholeTasks();
  }
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

// Fills memory.rows: queries of the task in order, each with the heads of the group.
void AttendCore::PrepareRows(const AttendTask& task, AttendMemory& memory) const {
  const LayerPass& pass = *task.pass;
  const RowVisibility visibility(spec_, pass);
  const int64_t group = spec_.group_size(), blocks = visibility.blocks();
  const size_t row_count = static_cast<size_t>((task.query_end - task.query_begin) * group);
  const size_t words = row_count * static_cast<size_t>(blocks);
  uint64_t* bits = visibility.needs_bits() ? memory.bits.Reserve(words) : nullptr;
  float* bias = visibility.needs_bias() ? memory.bias.Reserve(words * kTokensPerBlock) : nullptr;
  uint64_t* keep = visibility.drops() ? memory.keep.Reserve(words) : nullptr;
  memory.rows.assign(row_count, {});
  for (size_t r = 0; r < row_count; ++r) {
    const int64_t query = task.query_begin + static_cast<int64_t>(r) / group;
    const int64_t member = static_cast<int64_t>(r) % group;
    const int64_t head = task.kv_head * group + member;
    const int64_t row = task.first_row + query - task.query_begin;
    simd::AttentionRow& out = memory.rows[r];
    out.query = workspace_.queries.data() + row * query_stride_ + head * spec_.key_head_size;
    visibility.FillRange(head, query, &out);
    if (visibility.IsPadding(query)) {
      out.key_end = 0;
      continue;
    }
    // Heads with the same mask share the first one's.
    const bool shared = member > 0 && !visibility.differs_by_head();
    const size_t own = (shared ? r - static_cast<size_t>(member) : r) * static_cast<size_t>(blocks);
    if (bits != nullptr) {
      if (!shared) visibility.FillBits(head, query, bits + own);
      out.mask = bits + own;
    }
    if (bias != nullptr) {
      if (!shared) visibility.FillBias(head, query, bias + own * kTokensPerBlock);
      out.bias = bias + own * kTokensPerBlock;
    }
    if (keep != nullptr) {
      uint64_t* row_keep = keep + r * static_cast<size_t>(blocks);
      visibility.FillKeep(head, query, row_keep);
      out.keep = row_keep;
    }
  }
}

// One stretch for memory.rows; false if no row sees any of its keys.
bool AttendCore::AttendOneStretch(const AttendTask& task, AttendMemory& memory, int64_t stretch,
                                  float* partials) const {
  const KvSequence& cache = *task.pass->cache;
  const int64_t first = stretch * simd::kBlocksPerStretch;
  const int64_t count = std::min(simd::kBlocksPerStretch, BlocksForTokens(cache.length()) - first);
  const auto sees = [&](const simd::AttentionRow& row) {
    return simd::RowSeesBlocks(row, first, count);
  };
  if (count <= 0 || std::none_of(memory.rows.begin(), memory.rows.end(), sees)) return false;
  memory.blocks.clear();
  for (int64_t block = first; block < first + count; ++block) {
    memory.blocks.push_back({cache.keys(block, task.kv_head), cache.values(block, task.kv_head),
                             cache.values_finite(block, task.kv_head)});
  }
  const simd::AttentionParams params = Params(*task.pass);
  float* scratch = memory.scratch.Reserve(simd::AttendScratchFloats(params));
  simd::AttendStretch(params, memory.rows, first, memory.blocks, partials, scratch);
  return true;
}

void AttendCore::RunWholeTasks() {
  const int64_t partial_floats = simd::PartialFloats(spec_.value_head_size);
  runner_.Run(static_cast<int64_t>(workspace_.tasks.size()), [&](int64_t index, int worker) {
    const AttendTask& task = workspace_.tasks[static_cast<size_t>(index)];
    AttendMemory& memory = workspace_.workers[static_cast<size_t>(worker)];
    PrepareRows(task, memory);
    const size_t floats = memory.rows.size() * static_cast<size_t>(partial_floats);
    float* partial = memory.partial.Reserve(floats);
    float* total = memory.total.Reserve(floats);
    bool any = false;
    const int64_t blocks = BlocksForTokens(task.pass->cache->length());
    for (int64_t stretch = 0; stretch * simd::kBlocksPerStretch < blocks; ++stretch) {
      if (!AttendOneStretch(task, memory, stretch, any ? partial : total)) continue;
      for (size_t r = 0; any && r < memory.rows.size(); ++r) {
        const size_t at = r * static_cast<size_t>(partial_floats);
        simd::MergePartial(spec_.value_head_size, partial + at, total + at);
      }
      any = true;
    }
    FinishTask(task, any ? total : nullptr);
  });
}

void AttendCore::RunSplitTasks(int64_t stretches) {
  const int64_t partial_floats = simd::PartialFloats(spec_.value_head_size);
  const int64_t tasks = static_cast<int64_t>(workspace_.tasks.size());
  const int64_t stretch_floats = task_rows_ * partial_floats;
  float* partials = workspace_.partials.Reserve(static_cast<size_t>(stretches * stretch_floats));
  workspace_.seen.assign(static_cast<size_t>(tasks * stretches), 0);
  runner_.Run(tasks * stretches, [&](int64_t index, int worker) {
    const AttendTask& task = workspace_.tasks[static_cast<size_t>(index / stretches)];
    AttendMemory& memory = workspace_.workers[static_cast<size_t>(worker)];
    const int64_t stretch = index % stretches;
    PrepareRows(task, memory);
    float* target = partials + stretch * stretch_floats + task.partial_row * partial_floats;
    workspace_.seen[static_cast<size_t>(index)] = AttendOneStretch(task, memory, stretch, target);
  });
  runner_.Run(tasks, [&](int64_t index, int) {
    const AttendTask& task = workspace_.tasks[static_cast<size_t>(index)];
    const int64_t rows = (task.query_end - task.query_begin) * spec_.group_size();
    float* total = nullptr;
    for (int64_t stretch = 0; stretch < stretches; ++stretch) {
      if (workspace_.seen[static_cast<size_t>(index * stretches + stretch)] == 0) continue;
      float* next = partials + stretch * stretch_floats + task.partial_row * partial_floats;
      for (int64_t r = 0; total != nullptr && r < rows; ++r) {
        simd::MergePartial(spec_.value_head_size, next + r * partial_floats,
                           total + r * partial_floats);
      }
      if (total == nullptr) total = next;
    }
    FinishTask(task, total);
  });
}

void AttendCore::FinishTask(const AttendTask& task, const float* totals) {
  const int64_t group = spec_.group_size(), size = spec_.value_head_size;
  const std::vector<float>& sinks = spec_.attention.sink_logits;
  const float value_factor =
      task.pass->dropout.p > 0.0f ? 1.0f / (1.0f - task.pass->dropout.p) : 1.0f;
  const int64_t rows = (task.query_end - task.query_begin) * group;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = task.kv_head * group + r % group;
    const int64_t row = task.first_row + r / group;
    float* context = workspace_.contexts.data() + row * spec_.context_width() + head * size;
    float& lse = workspace_.lse.data()[row * spec_.head_count + head];
    if (totals == nullptr) {
      std::fill_n(context, size, 0.0f);
      lse = kMinusInfinity;
      continue;
    }
    const float sink = sinks.empty() ? kMinusInfinity : sinks[static_cast<size_t>(head)];
    lse =
        simd::FinishRow(size, totals + r * simd::PartialFloats(size), sink, value_factor, context);
  }
}

void AttendCore::CountMaskedRows() {
  const float* lse = workspace_.lse.data();
  for (const PassRows& range : ranges_) {
    const RowVisibility visibility(spec_, *range.pass);
    for (int64_t query = range.begin; query < range.end; ++query, lse += spec_.head_count) {
      if (visibility.IsPadding(query)) continue;
      range.pass->masked_rows += std::count(lse, lse + spec_.head_count, kMinusInfinity);
    }
  }
}

}  // namespace attnserve
