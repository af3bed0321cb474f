#include "lib/simd/attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "lib/simd/attention_layout.h"
#include "lib/simd/row_groups.h"
#include "lib/simd/visibility.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/simd/attention.cc"
#include "lib/simd/targets.h"
// clang-format off: Highway wants this order
#include "hwy/foreach_target.h"
#include "lib/simd/attention_kernels-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace attnserve {
namespace simd {
namespace HWY_NAMESPACE {

// Groups [first_group, last_group) over one block of keys and values. Everything of row r of the
// stretch lies at index r.
struct BlockTask {
  const AttentionParams* params;
  const RowGroups* groups;
  size_t first_group;
  size_t last_group;
  const AttentionRow* rows;
  const float* queries;  // as PackQueries writes them
  float* partials;
  int64_t index;
  const KvHeadBlock* block;
  bool plain;             // see PlainBlocks; its values are finite
  const void* next_keys;  // the next block's, fetched into the cache while values are summed
  float* scores;          // [kAttentionChunkRows][kBlock], from the first group's first row on

  size_t group_count() const { return static_cast<size_t>(groups->count()); }
};

template <class T>
using ScoreFunction = void (*)(const float*, size_t, const T*, const float*, size_t, float, float*,
                               Prefetcher);
template <class T>
constexpr ScoreFunction<T> kScoreStrip[kAttentionRowGroup] = {ScoreStrip<1, T>, ScoreStrip<2, T>,
                                                              ScoreStrip<3, T>, ScoreStrip<4, T>,
                                                              ScoreStrip<5, T>, ScoreStrip<6, T>};
template <class T>
using SumFunction = void (*)(const GroupWeights*, size_t, const T*, size_t, size_t, Prefetcher);
template <class T>
constexpr SumFunction<T> kSumPanel[kAttentionRowGroup] = {
    SumPanel<1, T>, SumPanel<2, T>, SumPanel<3, T>, SumPanel<4, T>, SumPanel<5, T>, SumPanel<6, T>};

// In an I8 cache the scales of tokens `first` and on, which follow `vectors` of `size` elements;
// null for other types.
template <class T>
HWY_INLINE const float* ScalesFrom(size_t first, const T* vectors, size_t size) {
  if constexpr (!std::is_same_v<T, I8>) return nullptr;
  return reinterpret_cast<const float*>(vectors + kBlock * size) + first;
}

// A row group in a block.
struct GroupState {
  size_t row;   // its first
  size_t size;  // rows
  // Keys [first_key, end_key) and the strips they lie in: from the first to the last that any of
  // its rows sees.
  size_t first_key = 0;
  size_t end_key = 0;
  StripRange strips = {0, 0};
  GroupSoftmax softmax;

  bool sees_any() const { return end_key != 0; }
  void See(uint64_t keys) {
    if (keys == 0) return;
    first_key = hwy::Num0BitsBelowLS1Bit_Nonzero64(keys);
    end_key = 64 - hwy::Num0BitsAboveMS1Bit_Nonzero64(keys);
    strips = {first_key / kStrip, (end_key + kStrip - 1) / kStrip};
  }
};

// Calls body(first, end) for each run of neighbouring groups of one size that `takes` chooses: the
// kernels do a run in one call.
template <class Takes, class Body>
HWY_INLINE void ForEachRun(absl::Span<const GroupState> states, const Takes& takes,
                           const Body& body) {
  for (size_t first = 0, end; first < states.size(); first = end) {
    end = first + 1;
    if (!takes(states[first])) continue;
    while (end < states.size() && states[end].size == states[first].size && takes(states[end])) {
      ++end;
    }
    body(first, end);
  }
}

// Strip by strip, each for all groups that see any of its keys.
template <class T>
HWY_INLINE void ScoreKeys(const BlockTask& task, absl::Span<const GroupState> states) {
  const size_t d_k = static_cast<size_t>(task.params->key_head_size);
  const T* keys = static_cast<const T*>(task.block->keys);
  const char* values = static_cast<const char*>(task.block->values);
  for (size_t s = 0; s < kBlock / kStrip; ++s) {
    const auto sees = [s](const GroupState& state) {
      return s >= state.strips.begin && s < state.strips.end;
    };
    ForEachRun(states, sees, [&](size_t first, size_t end) HWY_ATTR {
      const GroupState& state = states[first];
      kScoreStrip<T>[state.size - 1](
          task.queries + state.row * d_k, end - first, keys + s * kStrip * d_k,
          ScalesFrom(s * kStrip, keys, d_k), d_k, task.params->scale,
          task.scores + (state.row - states[0].row) * kBlock + s * kStrip,
          Prefetcher::Part(values + s * kStrip * sizeof(T) * d_k, kStrip * sizeof(T), d_k,
                           task.first_group + first, task.group_count()));
    });
  }
}

// Panel by panel, each for all groups.
template <class T>
HWY_INLINE void SumValues(const BlockTask& task, absl::Span<const GroupState> states) {
  const size_t stride = static_cast<size_t>(PartialFloats(task.params->value_head_size));
  const T* values = static_cast<const T*>(task.block->values);
  const char* next_keys = static_cast<const char*>(task.next_keys);
  GroupWeights weights[kAttentionChunkGroups];
  for (size_t g = 0; g < states.size(); ++g) {
    const GroupState& state = states[g];
    weights[g] = {task.scores + (state.row - states[0].row) * kBlock,
                  state.softmax.any_moved ? state.softmax.rescale : nullptr, state.first_key,
                  state.end_key, task.partials + state.row * stride + kPartialValues};
  }
  const auto sees = [](const GroupState& state) { return state.sees_any(); };
  for (size_t column = 0; column < stride - kPartialValues; column += kStrip) {
    ForEachRun(states, sees, [&](size_t first, size_t end) HWY_ATTR {
      kSumPanel<T>[states[first].size - 1](
          weights + first, end - first, values + column * kBlock, column, stride,
          Prefetcher::Part(next_keys + column * kBlock * sizeof(T), kStrip * sizeof(T), kBlock,
                           task.first_group + first, task.group_count()));
    });
  }
}

// The values of one row, `keys` only.
template <class T>
HWY_NOINLINE void SumSelectedValues(const KvHeadBlock& block, const float* weights, uint64_t keys,
                                    float rescale, size_t columns, float* sums) {
  const T* values = static_cast<const T*>(block.values);
  for (size_t column = 0; column < columns; column += kStrip) {
    SumSelected(weights, values + column * kBlock, keys, rescale, sums + column);
  }
}

// Scores of a group's rows, each with its visible `keys`, up to what the softmax takes. Of `keys`,
// leaves those whose values can count.
HWY_INLINE void FinishGroup(const BlockTask& task, const GroupState& state, StripRange strips,
                            float* scores, uint64_t* keys) {
  for (size_t r = 0; r < state.size; ++r) {
    const AttentionRow& row = task.rows[state.row + r];
    if (NeedsFinish(*task.params, row, keys[r])) {
      FinishScores(*task.params, row, task.index, strips, keys[r], scores + r * kBlock);
    }
    if (!task.block->values_finite) keys[r] &= ~KeysWithoutWeight(strips, scores + r * kBlock);
  }
}

// Dropout.
HWY_INLINE void DropGroup(const BlockTask& task, const GroupState& state, StripRange strips,
                          float* weights, uint64_t* keys) {
  for (size_t r = 0; r < state.size; ++r) {
    const AttentionRow& row = task.rows[state.row + r];
    if (row.keep == nullptr) continue;
    DropWeights(strips, row.keep[task.index], weights + r * kBlock);
    keys[r] &= row.keep[task.index];
  }
}

// The softmax of a group: from scores to weights. `value_scales` is null but for I8.
HWY_INLINE void WeighKeys(const BlockTask& task, const float* value_scales, float* scores,
                          uint64_t* keys, GroupState* state) {
  const size_t stride = static_cast<size_t>(PartialFloats(task.params->value_head_size));
  const StripRange strips = state->strips;
  if (!task.plain) FinishGroup(task, *state, strips, scores, keys);
  WeighGroup(strips, state->size, scores, task.partials + state->row * stride, stride,
             &state->softmax);
  if (value_scales != nullptr) ScaleWeights(strips, state->size, value_scales, scores);
  if (!task.plain) DropGroup(task, *state, strips, scores, keys);
}

// The groups of a task, and in keys[r] what row r of them sees; returns the groups.
HWY_INLINE absl::Span<GroupState> FindVisible(const BlockTask& task, uint64_t* keys,
                                              GroupState* states) {
  const size_t count = task.last_group - task.first_group;
  for (size_t g = 0; g < count; ++g) {
    GroupState& state = states[g];
    const int64_t group = static_cast<int64_t>(task.first_group + g);
    state.row = static_cast<size_t>(task.groups->begin(group));
    state.size = static_cast<size_t>(task.groups->size(group));
    if (task.plain) {
      state.See(~uint64_t{0});
      continue;
    }
    uint64_t seen = 0;
    for (size_t r = 0; r < state.size; ++r, ++keys) {
      *keys = VisibleKeys(task.rows[state.row + r], task.index);
      seen |= *keys;
    }
    state.See(seen);
  }
  return {states, count};
}

template <class T>
HWY_NOINLINE void AttendBlock(const BlockTask& task) {
  GroupState states[kAttentionChunkGroups];
  uint64_t keys[kAttentionChunkRows];
  const absl::Span<GroupState> groups = FindVisible(task, keys, states);
  ScoreKeys<T>(task, groups);
  const size_t stride = static_cast<size_t>(PartialFloats(task.params->value_head_size));
  const float* const value_scales =
      ScalesFrom(0, static_cast<const T*>(task.block->values), stride - kPartialValues);
  for (GroupState& group : groups) {
    const size_t at = group.row - groups[0].row;
    if (group.sees_any()) {
      WeighKeys(task, value_scales, task.scores + at * kBlock, keys + at, &group);
    }
  }
  if (task.block->values_finite) return SumValues<T>(task, groups);
  for (const GroupState& group : groups) {
    if (!group.sees_any()) continue;
    for (size_t r = 0; r < group.size; ++r) {
      const size_t row = group.row + r, at = row - groups[0].row;
      SumSelectedValues<T>(*task.block, task.scores + at * kBlock, keys[at],
                           group.softmax.rescale[r], stride - kPartialValues,
                           task.partials + row * stride + kPartialValues);
    }
  }
}

using BlockFunction = void (*)(const BlockTask&);

BlockFunction BlockFunctionFor(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return AttendBlock<F16>;
    case DType::kBF16:
      return AttendBlock<BF16>;
    case DType::kI8:
      return AttendBlock<I8>;
    default:
      return AttendBlock<float>;
  }
}

void AttendStretch(const AttentionParams& params, absl::Span<const AttentionRow> rows,
                   const float* queries, int64_t first_block, absl::Span<const KvHeadBlock> blocks,
                   float* partials, float* scratch) {
  const size_t stride = static_cast<size_t>(PartialFloats(params.value_head_size));
  std::fill_n(partials, rows.size() * stride, 0.0f);
  for (size_t r = 0; r < rows.size(); ++r) partials[r * stride + kPartialMax] = kMinusInfinity;
  const RowGroups groups(static_cast<int64_t>(rows.size()), kAttentionRowGroup);
  const BlockFunction attend_block = BlockFunctionFor(params.cache_dtype);
  const BlockSpan plain = PlainBlocks(params, rows);
  // A block stays in the second cache while every chunk of groups goes over it.
  for (size_t b = 0; b < blocks.size(); ++b) {
    BlockTask task;
    task.params = &params;
    task.groups = &groups;
    task.rows = rows.data();
    task.queries = queries;
    task.partials = partials;
    task.index = first_block + static_cast<int64_t>(b);
    task.block = &blocks[b];
    task.plain = plain.has(task.index) && blocks[b].values_finite;
    task.next_keys = b + 1 < blocks.size() ? blocks[b + 1].keys : blocks[b].keys;
    task.scores = scratch;
    for (size_t g = 0; g < task.group_count(); g = task.last_group) {
      task.first_group = g;
      task.last_group = std::min(task.group_count(), g + kAttentionChunkGroups);
      attend_block(task);
    }
  }
}

template <class T>
void ScoreBlock(const AttentionParams& params, const float* query, const T* keys, float* scores) {
  const size_t d_k = static_cast<size_t>(params.key_head_size);
  Prefetcher prefetcher = {reinterpret_cast<uintptr_t>(keys), kStrip * sizeof(T)};
  for (size_t s = 0; s < kBlock / kStrip; ++s) {
    ScoreStrip<1>(query, 1, keys + s * kStrip * d_k, ScalesFrom(s * kStrip, keys, d_k), d_k,
                  params.scale, scores + s * kStrip, prefetcher);
  }
}

void BlockScores(const AttentionParams& params, const float* query, const KvHeadBlock& block,
                 float* scores) {
  switch (params.cache_dtype) {
    case DType::kF16:
      return ScoreBlock(params, query, static_cast<const F16*>(block.keys), scores);
    case DType::kBF16:
      return ScoreBlock(params, query, static_cast<const BF16*>(block.keys), scores);
    case DType::kI8:
      return ScoreBlock(params, query, static_cast<const I8*>(block.keys), scores);
    default:
      return ScoreBlock(params, query, static_cast<const float*>(block.keys), scores);
  }
}

void SoftcapScores(float cap, int64_t count, float* scores) {
  const size_t size = static_cast<size_t>(count);
  const Floats caps = hn::Set(FloatTag(), cap);
  for (size_t i = 0; i < size; i += kLanes) {
    StoreSome(Softcap(LoadSome(scores + i, size - i), caps), scores + i, size - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace simd
}  // namespace attnserve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnserve::simd {

HWY_EXPORT(AttendStretch);
HWY_EXPORT(BlockScores);
HWY_EXPORT(SoftcapScores);

size_t AttendScratchFloats() { return kAttentionChunkRows * static_cast<size_t>(kTokensPerBlock); }

void AttendStretch(const AttentionParams& params, absl::Span<const AttentionRow> rows,
                   const float* queries, int64_t first_block, absl::Span<const KvHeadBlock> blocks,
                   float* partials, float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttendStretch)
  (params, rows, queries, first_block, blocks, partials, scratch);
}

bool RowSeesBlocks(const AttentionRow& row, int64_t first_block, int64_t block_count) {
  const int64_t end = std::min(first_block + block_count, BlocksForTokens(row.key_end));
  for (int64_t block = first_block; block < end; ++block) {
    if (VisibleKeys(row, block) != 0) return true;
  }
  return false;
}

void BlockScores(const AttentionParams& params, const float* query, const KvHeadBlock& block,
                 float* scores) {
  HWY_DYNAMIC_DISPATCH(BlockScores)(params, query, block, scores);
}

void SoftcapScores(float cap, int64_t count, float* scores) {
  HWY_DYNAMIC_DISPATCH(SoftcapScores)(cap, count, scores);
}

}  // namespace attnserve::simd
#endif  // HWY_ONCE
