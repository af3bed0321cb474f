#include <algorithm>

#include "lib/attention/attention_layer_impl.h"

namespace attnserve {
namespace {

// Rows a task has, heads of a group included: enough to use a block of keys well, and few enough
// that all workers have something to do.
constexpr int64_t kTaskRows = 192;
// A task that is more than one part in this many of a worker's share has its stretches shared out.
constexpr int64_t kJobsPerWorker = 2;
// So has one of more rows times stretches: a runner can do something else between two of them, but
// not before a millisecond or two have passed.
constexpr int64_t kLongestJob = 512;
// Reading a block of keys and values costs about as much as attending it with so many rows.
constexpr int64_t kRowsPerRead = 8;
// Memory that shared-out stretches may keep their partial results in, in floats (64 MiB).
constexpr int64_t kMostPartialFloats = int64_t{16} << 20;
// Memory of summands that one task may unpack, in floats (4 MiB).
constexpr int64_t kMostBiasFloats = int64_t{1} << 20;

// Masks that the rows of some queries need, each of one memory.
int64_t MaskCount(const RowVisibility& visibility, int64_t queries, int64_t group) {
  return (visibility.differs_by_query() ? queries : 1) * (visibility.differs_by_head() ? group : 1);
}

int64_t TileQueries(const RowVisibility& visibility, int64_t group) {
  const int64_t tile = std::max<int64_t>(1, kTaskRows / group);
  if (!visibility.needs_bias() || !visibility.differs_by_query()) return tile;
  const int64_t floats = MaskCount(visibility, 1, group) * visibility.blocks() * kTokensPerBlock;
  return std::clamp<int64_t>(kMostBiasFloats / std::max<int64_t>(1, floats), 1, tile);
}

struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Keys that queries [begin, end) may see, or a few more.
KeyRange ReachableKeys(const RowVisibility& visibility, int64_t begin, int64_t end) {
  KeyRange keys = {visibility.keys(), 0};
  for (int64_t query = begin; query < end; ++query) {
    simd::AttentionRow row;
    visibility.FillRange(0, query, &row);
    keys.begin = std::min(keys.begin, row.sinks > 0 ? 0 : row.begin);
    keys.end = std::max(keys.end, std::min(row.key_end, std::max(row.end, row.sinks)));
  }
  return keys.begin < keys.end ? keys : KeyRange{};
}

}  // namespace

int64_t AttendCore::Rows(const AttendTask& task) const {
  return (task.query_end - task.query_begin) * spec_.group_size();
}

int64_t AttendCore::Work(const AttendTask& task) const {
  return task.stretches() * (Rows(task) + kRowsPerRead);
}

void AttendCore::AddNeeds(const LayerPass& pass, int64_t queries) {
  const RowVisibility visibility(spec_, pass);
  const int64_t rows = queries * spec_.group_size(), blocks = visibility.blocks();
  const int64_t words = MaskCount(visibility, queries, spec_.group_size()) * blocks;
  needs_.rows = std::max(needs_.rows, rows);
  if (visibility.needs_bits()) needs_.bits = std::max(needs_.bits, words);
  if (visibility.needs_bias()) needs_.bias = std::max(needs_.bias, words * kTokensPerBlock);
  if (visibility.drops()) needs_.keep = std::max(needs_.keep, rows * blocks);
  if (!pass.stages.empty()) needs_.scores = std::max(needs_.scores, blocks * kTokensPerBlock);
}

void AttendCore::MakeTasks() {
  const int64_t group = spec_.group_size();
  workspace_.tasks.clear();
  int64_t row = 0;
  for (const PassRows& range : ranges_) {
    const RowVisibility visibility(spec_, *range.pass);
    const int64_t tile = TileQueries(visibility, group);
    if (range.begin < range.end) AddNeeds(*range.pass, std::min(tile, range.end - range.begin));
    for (int64_t begin = range.begin; begin < range.end; begin += tile) {
      AttendTask task;
      task.pass = range.pass;
      task.query_begin = begin;
      task.query_end = std::min(range.end, begin + tile);
      task.first_row = row;
      const KeyRange keys = ReachableKeys(visibility, begin, task.query_end);
      task.stretch_begin = keys.begin / simd::kStretchTokens;
      task.stretch_end = (keys.end + simd::kStretchTokens - 1) / simd::kStretchTokens;
      for (; task.kv_head < spec_.kv_head_count; ++task.kv_head) workspace_.tasks.push_back(task);
      operations_ += (task.query_end - begin) * spec_.head_count * (keys.end - keys.begin) *
                     (spec_.key_head_size + spec_.value_head_size);
      row += task.query_end - begin;
    }
  }
}

void AttendCore::MakeJobs() {
  workspace_.jobs.clear();
  workspace_.split_tasks.clear();
  int64_t work = 0, partial_rows = 0;
  for (const AttendTask& task : workspace_.tasks) work += Work(task);
  const int64_t workers = runner_.worker_count();
  for (size_t t = 0; t < workspace_.tasks.size(); ++t) {
    AttendTask& task = workspace_.tasks[t];
    const int64_t index = static_cast<int64_t>(t);
    const int64_t rows = Rows(task) * task.stretches();
    const bool large = workers > 1 && Work(task) * workers * kJobsPerWorker > work;
    const bool fits = (partial_rows + rows) * partial_floats_ <= kMostPartialFloats;
    if (task.stretches() < 2 || !(large || rows > kLongestJob) || !fits) {
      workspace_.jobs.push_back({index, -1});
      continue;
    }
    task.first_job = static_cast<int64_t>(workspace_.jobs.size());
    task.first_partial = partial_rows;
    partial_rows += rows;
    workspace_.split_tasks.push_back(index);
    for (int64_t stretch = task.stretch_begin; stretch < task.stretch_end; ++stretch) {
      workspace_.jobs.push_back({index, stretch});
    }
  }
  workspace_.partials.Reserve(static_cast<size_t>(partial_rows * partial_floats_));
  workspace_.seen.resize(workspace_.jobs.size());
}

void AttendCore::ReserveWorkers() {
  const size_t workers = static_cast<size_t>(runner_.worker_count());
  if (workspace_.workers.size() < workers) workspace_.workers.resize(workers);
  const size_t results = static_cast<size_t>(needs_.rows * partial_floats_);
  const size_t scratch = simd::AttendScratchFloats();
  const size_t queries = static_cast<size_t>(needs_.rows * spec_.key_head_size);
  const size_t context = static_cast<size_t>(spec_.value_head_size);
  size_t floats = 2 * results + scratch + queries + context;
  // Many rows go over it for every block: worth a huge page.
  if (needs_.rows >= kTaskRows / 4) {
    floats = std::max(floats, static_cast<size_t>(kHugePageBytes) / sizeof(float));
  }
  for (size_t i = 0; i < workers; ++i) {
    AttendMemory& memory = workspace_.workers[i];
    memory.partial = memory.floats.Reserve(floats);
    memory.total = memory.partial + results;
    memory.scratch = memory.total + results;
    memory.queries = memory.scratch + scratch;
    memory.context = memory.queries + queries;
    memory.bits.Reserve(static_cast<size_t>(needs_.bits));
    memory.bias.Reserve(static_cast<size_t>(needs_.bias));
    memory.keep.Reserve(static_cast<size_t>(needs_.keep));
    memory.scores.Reserve(static_cast<size_t>(needs_.scores));
    memory.rows.reserve(static_cast<size_t>(needs_.rows));
  }
}

}  // namespace attnserve
