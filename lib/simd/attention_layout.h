// How the attention kernels lay out their memory.
#ifndef ATTNSERVE_LIB_SIMD_ATTENTION_LAYOUT_H_
#define ATTNSERVE_LIB_SIMD_ATTENTION_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace attnserve::simd {

// Rows that share the loads of keys and values: 6 x 16 accumulators fit the registers of AVX2.
inline constexpr int64_t kAttentionRowGroup = 6;

// Row groups that go over a strip of keys, and over a panel of values, while it lies in the first
// cache: their queries and scores lie there too.
inline constexpr size_t kAttentionChunkGroups = 4;
inline constexpr size_t kAttentionChunkRows =
    kAttentionChunkGroups * static_cast<size_t>(kAttentionRowGroup);

// A partial result (PartialFloats in attention.h):
// [0 .. 16)  sum of weights, lane = key modulo 16; all 0 if and only if nothing was attended
// [16]       largest score; -inf if there was none but NaN and -inf
// [17 .. 32) 0
// [32 .. )   weighted sum of values, padded to 16 with zeros
inline constexpr size_t kPartialSum = 0;
inline constexpr size_t kPartialMax = 16;
inline constexpr size_t kPartialValues = 32;

}  // namespace attnserve::simd

#endif  // ATTNSERVE_LIB_SIMD_ATTENTION_LAYOUT_H_
