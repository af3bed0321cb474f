// Where PackRows and PackColumn put things.
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/aligned_buffer.h"
#include "lib/simd/panel_product.h"
#include "tests/unit/simd/targets_test_util.h"

namespace attnserve::simd {
namespace {

// Distinct numbers that every element type holds exactly.
float Number(int64_t i, int64_t c) { return static_cast<float>(i * 64 + c); }

TEST(PackRows, LaysOutBlocksThenEvenGroupsThenRows) {
  // 300 = 150 + 150 reduction steps; 8 rows = two groups of 4; the stride exceeds k.
  constexpr int64_t kRows = 8;
  constexpr int64_t kDepth = 300;
  constexpr int64_t kStride = 307;
  std::vector<float> x(kRows * kStride, NAN);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kDepth; ++i) {
      x[static_cast<size_t>(r * kStride + i)] = static_cast<float>(r * 1000 + i);
    }
  }
  std::vector<float> packed(PackedRowsFloats(kRows, kDepth), NAN);
  PackRows(x.data(), kStride, kRows, kDepth, packed.data());
  size_t at = 0;
  for (const int64_t block : {0, 150}) {
    for (const int64_t group : {0, 4}) {
      for (int64_t i = block; i < block + 150; ++i) {
        for (int64_t r = group; r < group + 4; ++r) {
          ASSERT_EQ(packed[at++], static_cast<float>(r * 1000 + i));
        }
      }
    }
  }
  EXPECT_EQ(at, packed.size());
}

TEST(PackColumn, F32ColumnsLieSideBySide) {
  constexpr int64_t kDepth = 5;
  AlignedBuffer<float> panels(3 * 16 * kDepth);
  for (int64_t c = 0; c < 48; ++c) {
    float column[kDepth];
    for (int64_t i = 0; i < kDepth; ++i) column[i] = Number(i, c);
    PackColumn(DType::kF32, column, 1, kDepth, c, DType::kF32, panels.data());
  }
  for (int64_t c = 0; c < 48; ++c) {
    for (int64_t i = 0; i < kDepth; ++i) {
      ASSERT_EQ(panels.data()[(c / 16 * kDepth + i) * 16 + c % 16], Number(i, c));
    }
  }
}

TEST(PackColumn, SixteenBitColumnsAreInterleavedPairs) {
  constexpr int64_t kDepth = 3;
  for (const DType type : {DType::kF16, DType::kBF16}) {
    AlignedBuffer<uint32_t> panels(2 * 8 * kDepth);
    for (int64_t c = 0; c < 32; ++c) {
      float column[kDepth];
      for (int64_t i = 0; i < kDepth; ++i) column[i] = Number(i, c);
      PackColumn(DType::kF32, column, 1, kDepth, c, type, panels.data());
    }
    for (int64_t c = 0; c < 32; ++c) {
      for (int64_t i = 0; i < kDepth; ++i) {
        const uint32_t word = panels.data()[(c / 16 * kDepth + i) * 8 + c % 8];
        const uint16_t half = static_cast<uint16_t>(c % 16 < 8 ? word : word >> 16);
        ASSERT_EQ(type == DType::kF16 ? F16ToF32(half) : Bf16ToF32(half), Number(i, c));
      }
    }
  }
}

TEST(PackColumn, ReadsStridedMisalignedSourcesOfEveryType) {
  for (const DType source : {DType::kF32, DType::kF16, DType::kBF16}) {
    const size_t size = ElementSize(source);
    std::vector<uint8_t> bytes(1 + 3 * 7 * size);
    const float values[] = {1.5f, -2.0f, 0.25f};
    for (size_t i = 0; i < 3; ++i) {
      uint8_t* place = bytes.data() + 1 + i * 7 * size;
      if (source == DType::kF32) {
        std::memcpy(place, &values[i], size);
      } else {
        const uint16_t half = source == DType::kF16 ? F32ToF16(values[i]) : F32ToBf16(values[i]);
        std::memcpy(place, &half, size);
      }
    }
    AlignedBuffer<float> panels(3 * 16);
    PackColumn(source, bytes.data() + 1, 7, 3, 4, DType::kF32, panels.data());
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(panels.data()[i * 16 + 4], values[i]);
  }
}

TEST(WidenPanels, GivesThePanelsOfRoundedF32Weights) {
  constexpr int64_t kDepth = 9;
  constexpr int64_t kColumns = 64;
  for (const DType type : {DType::kF16, DType::kBF16}) {
    AlignedBuffer<uint16_t> narrow(kColumns * kDepth);
    AlignedBuffer<float> expected(kColumns * kDepth);
    for (int64_t c = 0; c < kColumns; ++c) {
      float column[kDepth];
      for (int64_t i = 0; i < kDepth; ++i) column[i] = std::sin(Number(i, c));
      PackColumn(DType::kF32, column, 1, kDepth, c, type, narrow.data());
      for (float& value : column) {
        value = type == DType::kF16 ? F16ToF32(F32ToF16(value)) : Bf16ToF32(F32ToBf16(value));
      }
      PackColumn(DType::kF32, column, 1, kDepth, c, DType::kF32, expected.data());
    }
    ForEachTarget([&] {
      AlignedBuffer<float> wide(2 * 16 * kDepth);
      WidenPanels(type, narrow.data(), kDepth, 1, 3, wide.data());
      for (int64_t i = 0; i < 2 * 16 * kDepth; ++i) {
        ASSERT_EQ(wide.data()[i], expected.data()[16 * kDepth + i]) << i;
      }
    });
  }
}

}  // namespace
}  // namespace attnserve::simd
