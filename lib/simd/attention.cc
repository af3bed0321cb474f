#include "lib/simd/attention.h"

#include <algorithm>
#include <cmath>

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

// One block of keys and values for one row group.
struct BlockTask {
  const AttentionParams* params;
  const AttentionRow* rows;
  const float* queries;  // of the rows, [d_k][rows]
  int64_t index;
  const KvHeadBlock* block;
  const void* next_keys;  // the next block's, fetched into the cache while values are summed
  size_t group;           // of `groups` row groups, which share that work
  size_t groups;
  float* partials;
  float* scores;  // [kAttentionRowGroup][kBlock]
};

HWY_INLINE size_t FirstKey(uint64_t keys) { return hwy::Num0BitsBelowLS1Bit_Nonzero64(keys); }

HWY_INLINE size_t EndKey(uint64_t keys) { return 64 - hwy::Num0BitsAboveMS1Bit_Nonzero64(keys); }

template <size_t kRows, class T>
HWY_INLINE void ScoreKeys(const BlockTask& task, StripRange strips) {
  const AttentionParams& params = *task.params;
  const size_t d_k = static_cast<size_t>(params.key_head_size);
  const T* keys = static_cast<const T*>(task.block->keys);
  Prefetcher prefetcher = Prefetcher::Part(task.block->values, kStrip * sizeof(T),
                                           kBlock / kStrip * d_k, task.group, task.groups);
  for (size_t s = strips.begin; s < strips.end; ++s) {
    ScoreStrip<kRows>(task.queries, keys + s * kStrip * d_k, d_k, params.scale,
                      task.scores + s * kStrip, prefetcher);
  }
}

template <size_t kRows, class T>
HWY_INLINE void SumValues(const BlockTask& task, uint64_t seen, const float* rescale) {
  const size_t stride = static_cast<size_t>(PartialFloats(task.params->value_head_size));
  const T* values = static_cast<const T*>(task.block->values);
  const size_t columns = stride - kPartialValues;
  Prefetcher prefetcher = Prefetcher::Part(task.next_keys, kStrip * sizeof(T),
                                           columns / kStrip * kBlock, task.group, task.groups);
  for (size_t column = 0; column < columns; column += kStrip) {
    SumPanel<kRows>(task.scores, values + column * kBlock, FirstKey(seen), EndKey(seen), rescale,
                    task.partials + kPartialValues + column, stride, prefetcher);
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

template <size_t kRows, class T>
HWY_NOINLINE void AttendBlock(const BlockTask& task) {
  uint64_t keys[kRows];  // visible to each row; later those whose values it takes
  uint64_t seen = 0;
  for (size_t r = 0; r < kRows; ++r) {
    keys[r] = VisibleKeys(task.rows[r], task.index);
    seen |= keys[r];
  }
  if (seen == 0) return;
  const StripRange strips = {FirstKey(seen) / kStrip, (EndKey(seen) + kStrip - 1) / kStrip};
  ScoreKeys<kRows, T>(task, strips);

  const size_t stride = static_cast<size_t>(PartialFloats(task.params->value_head_size));
  const bool select = !task.block->values_finite;
  float rescale[kRows];
  bool any_moved = false;
  for (size_t r = 0; r < kRows; ++r) {
    const AttentionRow& row = task.rows[r];
    float* scores = task.scores + r * kBlock;
    FinishScores(*task.params, row, task.index, strips, keys[r], scores);
    if (select) keys[r] &= ~KeysWithoutWeight(strips, scores);
    rescale[r] = WeighScores(strips, scores, task.partials + r * stride);
    any_moved |= rescale[r] != 1.0f;
    if (row.keep == nullptr) continue;
    DropWeights(strips, row.keep[task.index], scores);
    keys[r] &= row.keep[task.index];
  }
  if (!select) return SumValues<kRows, T>(task, seen, any_moved ? rescale : nullptr);
  for (size_t r = 0; r < kRows; ++r) {
    SumSelectedValues<T>(*task.block, task.scores + r * kBlock, keys[r], rescale[r],
                         stride - kPartialValues, task.partials + r * stride + kPartialValues);
  }
}

using BlockFunction = void (*)(const BlockTask&);

template <class T>
BlockFunction BlockFunctionFor(size_t rows) {
  static constexpr BlockFunction kFunctions[kAttentionRowGroup] = {
      AttendBlock<1, T>, AttendBlock<2, T>, AttendBlock<3, T>,
      AttendBlock<4, T>, AttendBlock<5, T>, AttendBlock<6, T>};
  return kFunctions[rows - 1];
}

BlockFunction BlockFunctionFor(DType dtype, size_t rows) {
  switch (dtype) {
    case DType::kF16:
      return BlockFunctionFor<F16>(rows);
    case DType::kBF16:
      return BlockFunctionFor<BF16>(rows);
    default:
      return BlockFunctionFor<float>(rows);
  }
}

// Rows in groups as even as possible, the larger ones first.
struct AttentionGroups {
  explicit AttentionGroups(size_t rows)
      : count((rows + kAttentionRowGroup - 1) / kAttentionRowGroup), rows(rows) {}
  size_t size(size_t group) const { return rows / count + (group < rows % count ? 1 : 0); }

  size_t count;
  size_t rows;
};

// Writes the queries of each group side by side, [d_k][rows of the group]: where they lie they may
// be a power of two apart, and then share the cache's sets.
void PackQueries(absl::Span<const AttentionRow> rows, size_t d_k, float* HWY_RESTRICT packed) {
  const AttentionGroups groups(rows.size());
  for (size_t g = 0, first = 0; g < groups.count; ++g) {
    const size_t size = groups.size(g);
    for (size_t r = 0; r < size; ++r) {
      const float* const query = rows[first + r].query;
      for (size_t i = 0; i < d_k; ++i) packed[i * size + r] = query[i];
    }
    packed += d_k * size;
    first += size;
  }
}

void AttendStretch(const AttentionParams& params, absl::Span<const AttentionRow> rows,
                   int64_t first_block, absl::Span<const KvHeadBlock> blocks, float* partials,
                   float* scratch) {
  const size_t d_k = static_cast<size_t>(params.key_head_size);
  const size_t stride = static_cast<size_t>(PartialFloats(params.value_head_size));
  std::fill_n(partials, rows.size() * stride, 0.0f);
  for (size_t r = 0; r < rows.size(); ++r) partials[r * stride + kPartialMax] = kMinusInfinity;
  float* const queries = scratch + kAttentionRowGroup * kBlock;
  PackQueries(rows, d_k, queries);
  // A block stays in the cache while every group reads it.
  const AttentionGroups groups(rows.size());
  for (size_t b = 0; b < blocks.size(); ++b) {
    const void* next_keys = b + 1 < blocks.size() ? blocks[b + 1].keys : blocks[b].keys;
    for (size_t g = 0, row = 0; g < groups.count; ++g) {
      BlockFunctionFor(params.cache_dtype, groups.size(g))(
          {&params, &rows[row], queries + row * d_k, first_block + static_cast<int64_t>(b),
           &blocks[b], next_keys, g, groups.count, partials + row * stride, scratch});
      row += groups.size(g);
    }
  }
}

template <class T>
void ScoreBlock(const AttentionParams& params, const float* query, const T* keys, float* scores) {
  const size_t d_k = static_cast<size_t>(params.key_head_size);
  Prefetcher prefetcher = {reinterpret_cast<uintptr_t>(keys), kStrip * sizeof(T)};
  for (size_t s = 0; s < kBlock / kStrip; ++s) {
    ScoreStrip<1>(query, keys + s * kStrip * d_k, d_k, params.scale, scores + s * kStrip,
                  prefetcher);
  }
}

void BlockScores(const AttentionParams& params, const float* query, const KvHeadBlock& block,
                 float* scores) {
  switch (params.cache_dtype) {
    case DType::kF16:
      return ScoreBlock(params, query, static_cast<const F16*>(block.keys), scores);
    case DType::kBF16:
      return ScoreBlock(params, query, static_cast<const BF16*>(block.keys), scores);
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
  return kAttentionRowGroup * static_cast<size_t>(kTokensPerBlock) +
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
