#include "lib/simd/attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "lib/simd/attention_layout.h"
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

// Rows in groups as even as possible, the larger ones first.
struct AttentionGroups {
  explicit AttentionGroups(size_t rows)
      : count((rows + kAttentionRowGroup - 1) / kAttentionRowGroup),
        size_of_small(count == 0 ? 0 : rows / count),
        larger(count == 0 ? 0 : rows % count) {}
  size_t size(size_t group) const { return size_of_small + (group < larger ? 1 : 0); }
  size_t begin(size_t group) const { return group * size_of_small + std::min(group, larger); }

  size_t count;
  size_t size_of_small;
  size_t larger;
};

// Groups [first_group, last_group) over one block of keys and values. Everything of row r of the
// stretch lies at index r.
struct BlockTask {
  const AttentionParams* params;
  const AttentionGroups* groups;
  size_t first_group;
  size_t last_group;
  const AttentionRow* rows;
  const float* queries;  // of a group [d_k][rows], from its first row times d_k on
  float* partials;
  int64_t index;
  const KvHeadBlock* block;
  bool plain;             // see PlainBlocks; its values are finite
  const void* next_keys;  // the next block's, fetched into the cache while values are summed
  float* scores;          // [kAttentionChunkRows][kBlock], from the first group's first row on
};

HWY_INLINE size_t FirstKey(uint64_t keys) { return hwy::Num0BitsBelowLS1Bit_Nonzero64(keys); }

HWY_INLINE size_t EndKey(uint64_t keys) { return 64 - hwy::Num0BitsAboveMS1Bit_Nonzero64(keys); }

HWY_INLINE StripRange StripsOf(uint64_t keys) {
  return {FirstKey(keys) / kStrip, (EndKey(keys) + kStrip - 1) / kStrip};
}

template <class T>
using ScoreFunction = void (*)(const float*, const T*, const float*, size_t, float, float*,
                               Prefetcher);
template <class T>
constexpr ScoreFunction<T> kScoreStrip[kAttentionRowGroup] = {ScoreStrip<1, T>, ScoreStrip<2, T>,
                                                              ScoreStrip<3, T>, ScoreStrip<4, T>,
                                                              ScoreStrip<5, T>, ScoreStrip<6, T>};
template <class T>
using SumFunction = void (*)(const float*, const T*, size_t, size_t, const float*, float*, size_t,
                             Prefetcher);
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
  size_t row;         // its first
  size_t size;        // rows
  uint64_t seen = 0;  // keys that any of its rows sees
  GroupSoftmax softmax;
};

// Strip by strip, each for all groups that see any of its keys.
template <class T>
HWY_INLINE void ScoreKeys(const BlockTask& task, absl::Span<const GroupState> states) {
  const size_t d_k = static_cast<size_t>(task.params->key_head_size);
  const T* keys = static_cast<const T*>(task.block->keys);
  const char* values = static_cast<const char*>(task.block->values);
  for (size_t s = 0; s < kBlock / kStrip; ++s) {
    for (size_t g = 0; g < states.size(); ++g) {
      const GroupState& state = states[g];
      if (state.seen == 0) continue;
      const StripRange strips = StripsOf(state.seen);
      if (s < strips.begin || s >= strips.end) continue;
      kScoreStrip<T>[state.size - 1](
          task.queries + state.row * d_k, keys + s * kStrip * d_k,
          ScalesFrom(s * kStrip, keys, d_k), d_k, task.params->scale,
          task.scores + (state.row - states[0].row) * kBlock + s * kStrip,
          Prefetcher::Part(values + s * kStrip * sizeof(T) * d_k, kStrip * sizeof(T), d_k,
                           task.first_group + g, task.groups->count));
    }
  }
}

// Panel by panel, each for all groups.
template <class T>
HWY_INLINE void SumValues(const BlockTask& task, absl::Span<const GroupState> states) {
  const size_t stride = static_cast<size_t>(PartialFloats(task.params->value_head_size));
  const T* values = static_cast<const T*>(task.block->values);
  const char* next_keys = static_cast<const char*>(task.next_keys);
  for (size_t column = 0; column < stride - kPartialValues; column += kStrip) {
    for (size_t g = 0; g < states.size(); ++g) {
      const GroupState& state = states[g];
      if (state.seen == 0) continue;
      kSumPanel<T>[state.size - 1](
          task.scores + (state.row - states[0].row) * kBlock, values + column * kBlock,
          FirstKey(state.seen), EndKey(state.seen),
          state.softmax.any_moved ? state.softmax.rescale : nullptr,
          task.partials + state.row * stride + kPartialValues + column, stride,
          Prefetcher::Part(next_keys + column * kBlock * sizeof(T), kStrip * sizeof(T), kBlock,
                           task.first_group + g, task.groups->count));
    }
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
  const StripRange strips = StripsOf(state->seen);
  if (!task.plain) FinishGroup(task, *state, strips, scores, keys);
  WeighGroup(strips, state->size, scores, task.partials + state->row * stride, stride,
             &state->softmax);
  if (value_scales != nullptr) ScaleWeights(strips, state->size, value_scales, scores);
  if (!task.plain) DropGroup(task, *state, strips, scores, keys);
}

// The groups of a task, and in keys[r] what row r of them sees; returns the groups.
HWY_INLINE absl::Span<GroupState> FindVisible(const BlockTask& task, uint64_t* keys,
                                              GroupState* states) {
  const size_t group_count = task.last_group - task.first_group;
  for (size_t g = 0; g < group_count; ++g) {
    GroupState& state = states[g];
    state.row = task.groups->begin(task.first_group + g);
    state.size = task.groups->size(task.first_group + g);
    if (task.plain) {
      state.seen = ~uint64_t{0};
      continue;
    }
    for (size_t r = 0; r < state.size; ++r, ++keys) {
      *keys = VisibleKeys(task.rows[state.row + r], task.index);
      state.seen |= *keys;
    }
  }
  return {states, group_count};
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
    if (group.seen != 0) {
      WeighKeys(task, value_scales, task.scores + at * kBlock, keys + at, &group);
    }
  }
  if (task.block->values_finite) return SumValues<T>(task, groups);
  for (const GroupState& group : groups) {
    if (group.seen == 0) continue;
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

// Writes the queries of each group side by side, [d_k][rows of the group]: where they lie they may
// be a power of two apart, and then share the cache's sets.
void PackQueries(absl::Span<const AttentionRow> rows, const AttentionGroups& groups, size_t d_k,
                 float* HWY_RESTRICT packed) {
  constexpr size_t kAhead = 2 * kAttentionRowGroup;  // rows
  for (size_t g = 0; g < groups.count; ++g) {
    const size_t size = groups.size(g), begin = groups.begin(g);
    for (size_t r = 0; r < size; ++r) {
      const float* const query = rows[begin + r].query;
      const float* const ahead = rows[std::min(begin + r + kAhead, rows.size() - 1)].query;
      for (size_t i = 0; i < d_k; i += 16) hwy::Prefetch(ahead + i);
      float* HWY_RESTRICT target = packed + begin * d_k + r;
      size_t i = 0;
      for (; i + 4 <= d_k; i += 4, target += 4 * size) {
        target[0] = query[i];
        target[size] = query[i + 1];
        target[2 * size] = query[i + 2];
        target[3 * size] = query[i + 3];
      }
      for (; i < d_k; ++i, target += size) target[0] = query[i];
    }
  }
}

void AttendStretch(const AttentionParams& params, absl::Span<const AttentionRow> rows,
                   int64_t first_block, absl::Span<const KvHeadBlock> blocks, float* partials,
                   float* scratch) {
  const size_t d_k = static_cast<size_t>(params.key_head_size);
  const size_t stride = static_cast<size_t>(PartialFloats(params.value_head_size));
  std::fill_n(partials, rows.size() * stride, 0.0f);
  for (size_t r = 0; r < rows.size(); ++r) partials[r * stride + kPartialMax] = kMinusInfinity;
  const AttentionGroups groups(rows.size());
  float* const queries = scratch + kAttentionChunkRows * kBlock;
  PackQueries(rows, groups, d_k, queries);
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
    for (size_t g = 0; g < groups.count; g = task.last_group) {
      task.first_group = g;
      task.last_group = std::min(groups.count, g + kAttentionChunkGroups);
      attend_block(task);
    }
  }
}

template <class T>
void ScoreBlock(const AttentionParams& params, const float* query, const T* keys, float* scores) {
  const size_t d_k = static_cast<size_t>(params.key_head_size);
  Prefetcher prefetcher = {reinterpret_cast<uintptr_t>(keys), kStrip * sizeof(T)};
  for (size_t s = 0; s < kBlock / kStrip; ++s) {
    ScoreStrip<1>(query, keys + s * kStrip * d_k, ScalesFrom(s * kStrip, keys, d_k), d_k,
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

size_t AttendScratchFloats(const AttentionParams& params, int64_t row_count) {
  return kAttentionChunkRows * static_cast<size_t>(kTokensPerBlock) +
         static_cast<size_t>(row_count * params.key_head_size);
}

void AttendStretch(const AttentionParams& params, absl::Span<const AttentionRow> rows,
                   int64_t first_block, absl::Span<const KvHeadBlock> blocks, float* partials,
                   float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttendStretch)(params, rows, first_block, blocks, partials, scratch);
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
