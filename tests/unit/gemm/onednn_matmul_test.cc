#include "lib/gemm/onednn_matmul.h"

#include <gtest/gtest.h>

#include "lib/gemm/onednn_product.h"

namespace attnserve {
namespace {

TEST(OneDnnMatmul, RowCountsAvoidEdgeKernels) {
  int64_t previous = INT64_MAX;
  for (const int64_t rows : OneDnnMatmul::kRowCounts) {
    EXPECT_EQ(rows % 6, 0);
    EXPECT_EQ(rows % OneDnnMatmul::kLeastRows, 0);
    EXPECT_LT(rows, previous);
    previous = rows;
    EXPECT_EQ(kRowsPerPass % rows, 0);
  }
}

TEST(OneDnnMatmul, InputRowsAreAnOddNumberOfCacheLines) {
  for (int64_t k = 1; k < 5000; ++k) {
    const int64_t stride = OneDnnMatmul::InputStride(k);
    EXPECT_GE(stride, k);
    EXPECT_LT(stride, k + 32);
    EXPECT_EQ(stride % 32, 16);
  }
}

TEST(OneDnnMatmul, PrimitivesAreMadeOnceAndAreFast) {
  for (const int64_t rows : OneDnnMatmul::kRowCounts) {
    const auto first = OneDnnMatmul::Get(rows, 77);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ((*first)->rows(), rows);
    EXPECT_NE((*first)->implementation().substr(0, 3), "ref");
    EXPECT_EQ(*OneDnnMatmul::Get(rows, 77), *first);
  }
}

TEST(OneDnnMatmul, ImpossibleShapeIsAKernelFailure) {
  const auto matmul = OneDnnMatmul::Get(96, -5);
  ASSERT_FALSE(matmul.ok());
  EXPECT_EQ(matmul.status().code(), absl::StatusCode::kInternal);
}

TEST(OneDnnProduct, IsMadeOncePerDepth) {
  const auto first = OneDnnProduct::Get(100);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*OneDnnProduct::Get(100), *first);
  EXPECT_NE(*OneDnnProduct::Get(101), *first);
}

}  // namespace
}  // namespace attnserve
