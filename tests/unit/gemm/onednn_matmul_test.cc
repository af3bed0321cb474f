#include "lib/gemm/onednn_matmul.h"

#include <gtest/gtest.h>

#include <dnnl.hpp>
#include <string>

#include "lib/gemm/onednn_product.h"
#include "tests/unit/gemm/weight_fixture.h"

namespace attnserve {
namespace {

// Widths of the layers in tests and benchmarks and of common models, and sizes beside a vector's.
constexpr int64_t kDepths[] = {1,    2,    3,    7,    8,    15,   16,   17,    24,   50,
                               63,   64,   65,   96,   100,  255,  256,  257,   768,  1023,
                               1024, 2048, 3072, 4096, 4097, 5120, 8192, 11008, 14336};

bool IsReference(const std::string& implementation) {
  return implementation.find("ref") != std::string::npos;
}

// What oneDNN runs for F32 products of 96 rows, x [96, 64] with elements `step` apart.
std::string ImplementationWithGaps(int64_t step) {
  using dnnl::memory;
  const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  const auto matrix = [](int64_t rows, int64_t columns, memory::dims strides) {
    return memory::desc({rows, columns}, memory::data_type::f32, strides);
  };
  const memory::desc x = matrix(96, 64, {64 * step, step}), w = matrix(64, 16, {16, 1}),
                     y = matrix(96, 16, {16, 1});
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(cpu, x, w, y).impl_info_str();
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, w, y), cpu).impl_info_str();
#endif
}

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

// Get refuses what is called so. No shape it can be asked for is: what oneDNN cannot do fast, it
// names here.
TEST(OneDnnMatmul, ReferenceCodeSaysSoInItsName) {
  EXPECT_EQ(ImplementationWithGaps(2).substr(0, 3), "ref");
  EXPECT_FALSE(IsReference(ImplementationWithGaps(1)));
}

TEST(OneDnnMatmul, NoProductRunsOnReferenceCode) {
  for (const int64_t k : kDepths) {
    for (const int64_t rows : OneDnnMatmul::kRowCounts) {
      const auto matmul = OneDnnMatmul::Get(rows, k);
      ASSERT_TRUE(matmul.ok()) << matmul.status();
      EXPECT_FALSE(IsReference((*matmul)->implementation())) << rows << " rows of " << k;
    }
  }
}

TEST(OneDnnMatmul, NoWeightMatrixRunsOnReferenceCode) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t k : {50, 64, 257, 1024}) {
      for (const int64_t n : {1, 16, 100, 384}) {
        const TestWeights weights(type, k, n, WeightOrder::kOutIn, 1);
        const auto matrix = PackedMatrix::Create({weights.view()}, {}, GemmBackend::kOneDnn);
        ASSERT_TRUE(matrix.ok()) << matrix.status();
        EXPECT_NE((*matrix)->implementation(), "native");
        EXPECT_FALSE(IsReference((*matrix)->implementation()))
            << DTypeName(type) << " " << k << " x " << n;
      }
    }
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
