// Attention over cached blocks: the one routine behind decode, prefill and stateless passes, so
// that a token's result has the same bits whichever way it is computed.
//
// Order of operations, fixed for every instruction set of one kernel family:
//   score   one FMA per element of d_k, ascending, from 0; then * the key's scale in an I8 cache;
//           * scale; softcap; + bias; - ALiBi's slope * distance
//   keys    in blocks of kTokensPerBlock, blocks in stretches of kStretchTokens, both at absolute
//           indices, never by the sequence's own length
//   softmax running maximum, block by block inside a stretch; the sum in 16 lanes (key modulo 16)
//   values  one FMA per visible key, ascending, its weight * the value's scale in an I8 cache;
//           accumulators are rescaled only when the row's maximum moves
//   merge   stretches ascending, by one formula, also where one thread has them all
// Invisible keys contribute nothing, whatever they hold. Rows never influence each other.
// KernelFamily() in vector_ops.h names the family: without fused multiply-add instructions each FMA
// is a product and a sum.
//
// Values that are not numbers: a NaN score makes the row NaN; so does a score of +inf; a score of
// -inf weighs 0. A row whose scores are all -inf attended nothing. Every NaN in an output is the
// same quiet one.
//
// Sources: online softmax, Milakov and Gimelshein 2018; tiling, Dao et al. 2022 (FlashAttention);
// splitting over keys, Dao et al. 2023 (Flash-Decoding).
//
// Kernels neither allocate nor start threads; they dispatch to the best instruction set at run
// time.
#ifndef ATTNSERVE_LIB_SIMD_ATTENTION_H_
#define ATTNSERVE_LIB_SIMD_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "lib/simd/kv_layout.h"

namespace attnserve::simd {

inline constexpr int64_t kStretchTokens = 1024;
inline constexpr int64_t kBlocksPerStretch = kStretchTokens / kTokensPerBlock;

// One key/value head of one block; layout as in kv_layout.h. Of the keys, whole strips that hold a
// visible key are read; of the values, only tokens up to the last one any row of a call sees, which
// therefore must have been written.
struct KvHeadBlock {
  const void* keys = nullptr;
  const void* values = nullptr;
  bool values_finite = true;  // whether every element of `values` that was written is finite
};

// What all rows of a call share.
struct AttentionParams {
  int64_t key_head_size = 0;    // d_k
  int64_t value_head_size = 0;  // d_v
  DType cache_dtype = DType::kF32;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: off
  // Positions of keys [S], for ALiBi only; null: a key's position is its index.
  const int64_t* key_positions = nullptr;
};

// One query of one head. A key j is visible if it is in [begin, end) or j < sinks, and j < key_end,
// and its bit in `mask` is set.
struct AttentionRow {
  const float* query = nullptr;  // [d_k], any alignment; for PackQueries
  int64_t begin = 0;
  int64_t end = 0;
  int64_t sinks = 0;
  int64_t key_end = 0;
  const uint64_t* mask = nullptr;  // [blocks] bit j % 64 of word j / 64 = key j; null: all set
  const float* bias = nullptr;     // [S rounded up to blocks] added to scores; null: none
  float alibi_slope = 0.0f;        // score -= slope * |query_position - key position|
  int64_t query_position = 0;
  // Weights of keys whose bit is 0 count in the sum but take no value (dropout); null: all set.
  const uint64_t* keep = nullptr;  // [blocks]
};

// Result of one row over one or more stretches: the maximum, the sum, the weighted values. Floats a
// partial result takes for a value head size:
constexpr int64_t PartialFloats(int64_t value_head_size) {
  return 2 * kStripWidth + (value_head_size + kStripWidth - 1) / kStripWidth * kStripWidth;
}

// Copies the queries of `rows` to `packed` [rows * d_k] in the order AttendStretch reads them in:
// of each row group side by side, [d_k][rows of the group]. Where they lie they may be a power of
// two apart, and then share the cache's sets.
void PackQueries(const AttentionParams& params, absl::Span<const AttentionRow> rows, float* packed);

// Floats of scratch AttendStretch needs.
size_t AttendScratchFloats();

// Attends `rows` (any number), whose packed queries are `queries`, to the blocks of one stretch:
// blocks[i] holds the keys (first_block + i) * 64 ... + 63, first_block a multiple of
// kBlocksPerStretch, at most kBlocksPerStretch blocks. Writes row r's result to
// partials + r * PartialFloats(d_v) (aligned to 64 bytes). `scratch` is aligned to 64 bytes.
void AttendStretch(const AttentionParams& params, absl::Span<const AttentionRow> rows,
                   const float* queries, int64_t first_block, absl::Span<const KvHeadBlock> blocks,
                   float* partials, float* scratch);

// Whether `row` sees any key of blocks [first_block, first_block + block_count). A stretch of which
// a row sees nothing may be skipped for it: merging it changes no bit.
bool RowSeesBlocks(const AttentionRow& row, int64_t first_block, int64_t block_count);

// total = total merged with the next stretch, in place. Both as written by AttendStretch.
void MergePartial(int64_t value_head_size, const float* next, float* total);

// Turns a partial result into the output: output[0 .. d_v) = values / sum * value_factor + 0, all
// zero where nothing was attended. A finite `sink_logit` joins the sum (-inf: none); value_factor
// is 1 / (1 - p) under dropout, else 1. Returns the natural log of the sum of exp(score), sink
// included; -inf where nothing was attended.
float FinishRow(int64_t value_head_size, const float* partial, float sink_logit, float value_factor,
                float* output);

// Raw scores of one row, for callers that want to see them: scores[j] = q k_j * scale for the keys
// of one block, with the bits AttendStretch computes.
void BlockScores(const AttentionParams& params, const float* query, const KvHeadBlock& block,
                 float* scores);

// scores[i] = cap * tanh(scores[i] / cap), in place, with the bits AttendStretch computes; cap > 0.
void SoftcapScores(float cap, int64_t count, float* scores);

}  // namespace attnserve::simd

#endif  // ATTNSERVE_LIB_SIMD_ATTENTION_H_
