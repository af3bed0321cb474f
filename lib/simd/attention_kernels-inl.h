// The inner loops of attention: scores of a strip of keys, weighted sums of a panel of values, and
// the softmax between them. What is done for one row at a time is not inlined: it would be compiled
// again for every group size and element type. Scores and weights of a row group lie in
// [kRows][kTokensPerBlock].
#include <limits>
#include <type_traits>

#include "lib/simd/attention.h"
#include "lib/simd/attention_layout.h"
#include "lib/simd/exp-inl.h"
#include "lib/simd/kv_layout.h"
#include "lib/simd/lanes-inl.h"

#if defined(ATTNSERVE_LIB_SIMD_ATTENTION_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNSERVE_LIB_SIMD_ATTENTION_KERNELS_INL_H_
#undef ATTNSERVE_LIB_SIMD_ATTENTION_KERNELS_INL_H_
#else
#define ATTNSERVE_LIB_SIMD_ATTENTION_KERNELS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace attnserve {
namespace simd {
namespace HWY_NAMESPACE {

constexpr size_t kBlock = static_cast<size_t>(kTokensPerBlock);
constexpr size_t kStrip = static_cast<size_t>(kStripWidth);
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Strips [begin, end) of a block.
struct StripRange {
  size_t begin = 0;
  size_t end = kBlock / kStrip;
};

// scores[r][0 .. 16) = q_r k_j * scale for the 16 keys of one strip [d_k][16], whose own scales in
// an I8 cache are `key_scales`; for `groups` row groups, one behind the other in `queries`
// [groups][d_k][kRows] and in `scores`.
template <size_t kRows, class T>
HWY_NOINLINE void ScoreStrip(const float* HWY_RESTRICT queries, size_t groups,
                             const T* HWY_RESTRICT strip, const float* HWY_RESTRICT key_scales,
                             size_t d_k, float scale, float* HWY_RESTRICT scores,
                             Prefetcher prefetcher) {
  const FloatTag d;
  for (size_t g = 0; g < groups; ++g) {
    Floats sums[kRows][kVectors];
    ATTNSERVE_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      ATTNSERVE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
    }
    ATTNSERVE_UNROLL_4
    for (size_t i = 0; i < d_k; ++i, queries += kRows) {
      prefetcher.Next();
      Floats keys[kVectors];
      ATTNSERVE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) keys[v] = LoadLanes(strip + i * kStrip + v * kLanes);
      AddProducts<1>(queries, keys, sums);
    }
    ATTNSERVE_UNROLL
    for (size_t r = 0; r < kRows; ++r, scores += kBlock) {
      ATTNSERVE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        if constexpr (std::is_same_v<T, I8>) {
          sums[r][v] = hn::Mul(sums[r][v], hn::LoadU(d, key_scales + v * kLanes));
        }
        hn::StoreU(hn::Mul(sums[r][v], hn::Set(d, scale)), d, scores + v * kLanes);
      }
    }
  }
}

// A row group as SumPanel takes it.
struct GroupWeights {
  const float* weights;  // [kRows][kBlock]
  const float* rescale;  // [kRows]; null: 1
  size_t first;          // keys [first, last)
  size_t last;
  float* sums;  // of the first panel's columns; row r's lie r * stride behind
};

// For each group, sums_r[0 .. 16) = sums_r * rescale_r + sum over its keys of weights[r][j] * v_j,
// the sums being those from `column` on, the values one panel [64][16].
template <size_t kRows, class T>
HWY_NOINLINE void SumPanel(const GroupWeights* HWY_RESTRICT groups, size_t group_count,
                           const T* HWY_RESTRICT panel, size_t column, size_t stride,
                           Prefetcher prefetcher) {
  const FloatTag d;
  for (size_t g = 0; g < group_count; ++g) {
    const float* HWY_RESTRICT weights = groups[g].weights;
    const float* HWY_RESTRICT rescale = groups[g].rescale;
    float* HWY_RESTRICT values = groups[g].sums + column;
    Floats sums[kRows][kVectors];
    ATTNSERVE_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      ATTNSERVE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::LoadU(d, values + r * stride + v * kLanes);
        if (rescale != nullptr) sums[r][v] = hn::Mul(sums[r][v], hn::Set(d, rescale[r]));
      }
    }
    const size_t last = groups[g].last;
    ATTNSERVE_UNROLL_4
    for (size_t j = groups[g].first; j < last; ++j) {
      prefetcher.Next();
      Floats row[kVectors];
      ATTNSERVE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) row[v] = LoadLanes(panel + j * kStrip + v * kLanes);
      AddProducts<kBlock>(weights + j, row, sums);
    }
    ATTNSERVE_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      ATTNSERVE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        hn::StoreU(sums[r][v], d, values + r * stride + v * kLanes);
      }
    }
  }
}

// The same for one row and the keys whose bit is set in `keys` only: others are never touched.
template <class T>
HWY_INLINE void SumSelected(const float* weights, const T* panel, uint64_t keys, float rescale,
                            float* values) {
  const FloatTag d;
  for (size_t v = 0; v < kVectors; ++v) {
    Floats sum = hn::Mul(hn::LoadU(d, values + v * kLanes), hn::Set(d, rescale));
    for (uint64_t left = keys; left != 0; left &= left - 1) {
      const size_t j = hwy::Num0BitsBelowLS1Bit_Nonzero64(left);
      sum = hn::MulAdd(hn::Set(d, weights[j]), LoadLanes(panel + j * kStrip + v * kLanes), sum);
    }
    hn::StoreU(sum, d, values + v * kLanes);
  }
}

// Calls body(score, key) for each vector of the strips and stores what it returns; `key` is the
// index in the block of the vector's first key.
template <class Body>
HWY_INLINE void ForEachScore(StripRange strips, float* scores, const Body& body) {
  const FloatTag d;
  for (size_t j = strips.begin * kStrip; j < strips.end * kStrip; j += kLanes) {
    hn::StoreU(body(hn::LoadU(d, scores + j), j), d, scores + j);
  }
}

// Whether FinishScores has anything to do.
HWY_INLINE bool NeedsFinish(const AttentionParams& params, const AttentionRow& row,
                            uint64_t visible) {
  return visible != ~uint64_t{0} || params.softcap > 0.0f || row.bias != nullptr ||
         row.alibi_slope != 0.0f;
}

// Scores of one row: softcap, bias, ALiBi, and -inf for the keys that are not visible.
HWY_NOINLINE void FinishScores(const AttentionParams& params, const AttentionRow& row,
                               int64_t block, StripRange strips, uint64_t visible, float* scores) {
  const FloatTag d;
  if (params.softcap > 0.0f) {
    const Floats cap = hn::Set(d, params.softcap);
    ForEachScore(strips, scores, [&](Floats s, size_t) HWY_ATTR { return Softcap(s, cap); });
  }
  if (row.bias != nullptr) {
    const float* bias = row.bias + block * kTokensPerBlock;
    ForEachScore(strips, scores,
                 [&](Floats s, size_t j) HWY_ATTR { return hn::Add(s, hn::LoadU(d, bias + j)); });
  }
  if (row.alibi_slope != 0.0f) {
    for (size_t j = strips.begin * kStrip; j < strips.end * kStrip; ++j) {
      const int64_t key = block * kTokensPerBlock + static_cast<int64_t>(j);
      if (!((visible >> j) & 1)) continue;
      const int64_t position = params.key_positions == nullptr ? key : params.key_positions[key];
      const int64_t distance = row.query_position - position;
      scores[j] -= row.alibi_slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
  }
  if (visible == ~uint64_t{0}) return;
  const Floats hidden = hn::Set(d, kMinusInfinity);
  ForEachScore(strips, scores, [&](Floats s, size_t j) HWY_ATTR {
    return hn::IfThenElse(MaskFromBits(visible >> j), s, hidden);
  });
}

// Bit j = whether scores[j] is -inf.
HWY_NOINLINE uint64_t KeysWithoutWeight(StripRange strips, const float* scores) {
  uint64_t keys = 0;
  for (size_t j = strips.begin * kStrip; j < strips.end * kStrip; ++j) {
    keys |= static_cast<uint64_t>(scores[j] == kMinusInfinity) << j;
  }
  return keys;
}

// Largest score of the strips, NaN ignored.
HWY_INLINE float LargestScore(StripRange strips, const float* scores) {
  const FloatTag d;
  Floats best[kVectors];
  ATTNSERVE_UNROLL
  for (size_t v = 0; v < kVectors; ++v) best[v] = hn::Set(d, kMinusInfinity);
  for (size_t s = strips.begin; s < strips.end; ++s) {
    ATTNSERVE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      best[v] = MaxIgnoringNaN(hn::LoadU(d, scores + s * kStrip + v * kLanes), best[v]);
    }
  }
  for (size_t v = 1; v < kVectors; ++v) best[0] = MaxIgnoringNaN(best[v], best[0]);
  return hn::GetLane(hn::MaxOfLanes(d, best[0]));
}

// Lanes for the rows of a group.
constexpr size_t kRowLanes =
    (static_cast<size_t>(kAttentionRowGroup) + kLanes - 1) / kLanes * kLanes;

// The running softmax of a group's rows: what to subtract from a block's scores, and the factors
// for what was summed before, 1 unless a row's maximum moves.
struct GroupSoftmax {
  HWY_ALIGN float subtract[kRowLanes];
  HWY_ALIGN float rescale[kRowLanes];
  bool any_moved = false;
};

// Moves the rows' maxima, which are never -0. Where all scores were NaN or -inf any finite number
// will do to subtract: weights are NaN and 0.
HWY_INLINE void MoveMaxima(StripRange strips, size_t rows, const float* scores, float* partials,
                           size_t stride, GroupSoftmax* softmax) {
  const FloatTag d;
  HWY_ALIGN float before[kRowLanes];
  HWY_ALIGN float maxima[kRowLanes];
  for (size_t r = 0; r < kRowLanes; ++r) before[r] = maxima[r] = kMinusInfinity;
  for (size_t r = 0; r < rows; ++r) {
    before[r] = partials[r * stride + kPartialMax];
    maxima[r] = LargestScore(strips, scores + r * kBlock);
  }
  for (size_t r = 0; r < kRowLanes; r += kLanes) {
    const Floats old = hn::Load(d, before + r);
    const Floats block_max = hn::Add(hn::Load(d, maxima + r), hn::Zero(d));
    const FloatMask moved = hn::Gt(block_max, old);
    const Floats maximum = hn::IfThenElse(moved, block_max, old);
    const FloatMask nothing = hn::Eq(maximum, hn::Set(d, kMinusInfinity));
    const Floats subtract = hn::IfThenZeroElse(nothing, maximum);
    hn::Store(maximum, d, maxima + r);
    hn::Store(subtract, d, softmax->subtract + r);
    const Floats rescale = Exp(hn::Sub(old, subtract));
    hn::Store(hn::IfThenElse(moved, rescale, hn::Set(d, 1.0f)), d, softmax->rescale + r);
    softmax->any_moved |= !hn::AllFalse(d, moved);
  }
  for (size_t r = 0; r < rows; ++r) partials[r * stride + kPartialMax] = maxima[r];
}

// Turns the scores of one row into weights e^(score - subtract) and adds them to the row's sum.
HWY_INLINE void WeighScores(StripRange strips, float subtract, float rescale, float* scores,
                            float* partial) {
  const FloatTag d;
  const Floats maximum = hn::Set(d, subtract);
  Floats sums[kVectors];
  ATTNSERVE_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    sums[v] = hn::Mul(hn::LoadU(d, partial + kPartialSum + v * kLanes), hn::Set(d, rescale));
  }
  for (size_t s = strips.begin; s < strips.end; ++s) {
    ATTNSERVE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      float* at = scores + s * kStrip + v * kLanes;
      const Floats weight = Exp(hn::Sub(hn::LoadU(d, at), maximum));
      sums[v] = hn::Add(sums[v], weight);
      hn::StoreU(weight, d, at);
    }
  }
  ATTNSERVE_UNROLL
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[v], d, partial + kPartialSum + v * kLanes);
}

// From scores to weights for the rows of a group. Maxima first: what one row waits for overlaps
// with the others' work.
HWY_INLINE void WeighStrips(StripRange strips, size_t rows, float* scores, float* partials,
                            size_t stride, GroupSoftmax* softmax) {
  MoveMaxima(strips, rows, scores, partials, stride, softmax);
  for (size_t r = 0; r < rows; ++r) {
    WeighScores(strips, softmax->subtract[r], softmax->rescale[r], scores + r * kBlock,
                partials + r * stride);
  }
}

HWY_NOINLINE void WeighGroup(StripRange strips, size_t rows, float* scores, float* partials,
                             size_t stride, GroupSoftmax* softmax) {
  constexpr StripRange kWholeBlock;
  if (strips.begin == kWholeBlock.begin && strips.end == kWholeBlock.end) {
    return WeighStrips(kWholeBlock, rows, scores, partials, stride, softmax);  // unrolled
  }
  WeighStrips(strips, rows, scores, partials, stride, softmax);
}

// Weights times the scales of the values they will multiply.
HWY_NOINLINE void ScaleWeights(StripRange strips, size_t rows, const float* value_scales,
                               float* weights) {
  for (size_t r = 0; r < rows; ++r) {
    ForEachScore(strips, weights + r * kBlock, [&](Floats w, size_t j) HWY_ATTR {
      return hn::Mul(w, hn::LoadU(FloatTag(), value_scales + j));
    });
  }
}

// Weights of keys whose bit is not set become 0.
HWY_NOINLINE void DropWeights(StripRange strips, uint64_t keep, float* weights) {
  ForEachScore(strips, weights, [&](Floats w, size_t j) HWY_ATTR {
    return hn::IfThenElseZero(MaskFromBits(keep >> j), w);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace simd
}  // namespace attnserve
HWY_AFTER_NAMESPACE();

#endif  // ATTNSERVE_LIB_SIMD_ATTENTION_KERNELS_INL_H_
