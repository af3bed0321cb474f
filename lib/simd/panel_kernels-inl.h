// The inner loops of products with panels.
#include "lib/simd/lanes-inl.h"
#include "lib/simd/panel_product.h"

#if defined(ATTNSERVE_LIB_SIMD_PANEL_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNSERVE_LIB_SIMD_PANEL_KERNELS_INL_H_
#undef ATTNSERVE_LIB_SIMD_PANEL_KERNELS_INL_H_
#else
#define ATTNSERVE_LIB_SIMD_PANEL_KERNELS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace attnserve {
namespace simd {
namespace HWY_NAMESPACE {

constexpr int64_t kMaxDepth = 256;                    // largest ReductionBlock
constexpr int64_t kCachedRowBytes = 256 * 1024;       // half a common L2
constexpr int64_t kGroupsPerChunk = 192 / kRowGroup;  // 192 rows x 256 x 4 bytes: the same half

// F16 elements in words whose high halves are 0.
HWY_INLINE Floats WidenLowHalves(Words words) {
#if ATTNSERVE_NATIVE_F16
  const hn::RebindToSigned<WordTag> di;
  return WidenF16(hn::DemoteTo(HalfTag(), hn::BitCast(di, words)));
#else
  return F16BitsToF32(words);
#endif
}

// Columns 0-7 and 8-15 from the low and high halves of 32-bit words.
HWY_INLINE Floats LowHalves(const F16*, Words words) {
  return WidenLowHalves(hn::And(words, hn::Set(WordTag(), 0xffffu)));
}
HWY_INLINE Floats HighHalves(const F16*, Words words) {
  return WidenLowHalves(hn::ShiftRight<16>(words));
}
HWY_INLINE Floats LowHalves(const BF16*, Words words) {
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(words));
}
HWY_INLINE Floats HighHalves(const BF16*, Words words) {
  return hn::BitCast(FloatTag(), hn::And(words, hn::Set(WordTag(), 0xffff0000u)));
}

// One panel row of 16 columns.
HWY_INLINE void LoadPanelRow(const float* source, Floats (&row)[kVectors]) {
  ATTNSERVE_UNROLL
  for (size_t v = 0; v < kVectors; ++v) row[v] = hn::LoadU(FloatTag(), source + v * kLanes);
}

template <class W>
HWY_INLINE void LoadPanelRow(const W* source, Floats (&row)[kVectors]) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(source);
#if HWY_MAX_BYTES == 64
  // The lower lanes take the low halves of all eight words, the upper lanes the high ones.
  const auto eight = hn::LoadU(hn::Half<WordTag>(), words);
  row[0] = LowHalves(source, hn::Combine(WordTag(), hn::ShiftRight<16>(eight), eight));
#else
  ATTNSERVE_UNROLL
  for (size_t v = 0; v < kVectors / 2; ++v) {
    const Words some = hn::LoadU(WordTag(), words + v * kLanes);
    row[v] = LowHalves(source, some);
    row[v + kVectors / 2] = HighHalves(source, some);
  }
#endif
}

// y[r][0 .. 16) = or += the sum over `depth` of packed[i][r] * weights[i][0 .. 16).
template <size_t kRows, class W>
void MultiplyTile(const float* HWY_RESTRICT packed, const W* HWY_RESTRICT weights, size_t depth,
                  bool first, float* HWY_RESTRICT y, size_t y_stride, Prefetcher prefetcher) {
  const FloatTag d;
  Floats sums[kRows][kVectors];
  ATTNSERVE_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    ATTNSERVE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  ATTNSERVE_UNROLL_4
  for (size_t i = 0; i < depth; ++i) {
    prefetcher.Next();
    Floats row[kVectors];
    LoadPanelRow(weights + i * kPanelWidth, row);
    AddProducts<1>(packed + i * kRows, row, sums);
  }
  ATTNSERVE_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    ATTNSERVE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      float* at = y + r * y_stride + v * kLanes;
      hn::StoreU(first ? sums[r][v] : hn::Add(hn::LoadU(d, at), sums[r][v]), d, at);
    }
  }
}

// `rows` panel rows of 16-bit weights as F32.
template <class W>
void WidenRows(const W* source, size_t rows, float* HWY_RESTRICT target) {
  for (size_t i = 0; i < rows; ++i) {
    Floats row[kVectors];
    LoadPanelRow(source + i * kPanelWidth, row);
    ATTNSERVE_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(row[v], FloatTag(), target + i * kPanelWidth + v * kLanes);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace simd
}  // namespace attnserve
HWY_AFTER_NAMESPACE();

#endif  // ATTNSERVE_LIB_SIMD_PANEL_KERNELS_INL_H_
