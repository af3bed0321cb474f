#include "lib/gemm/packed_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "lib/base/errors.h"
#include "lib/engine/worker_pool.h"
#include "lib/simd/vector_ops.h"
#include "tests/unit/gemm/weight_fixture.h"

namespace attnserve {
namespace {

constexpr int64_t kMostRows = 300;
const std::vector<int64_t> kRowCounts = {1,  2,  5,  6,   7,   12,  13,  48,
                                         95, 96, 97, 100, 191, 192, 193, kMostRows};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string Reason(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return detail ? detail->reason : "";
}

std::unique_ptr<PackedMatrix> Pack(const std::vector<const TestWeights*>& weights,
                                   const std::vector<float>& bias, GemmBackend backend) {
  std::vector<WeightView> views;
  for (const TestWeights* matrix : weights) views.push_back(matrix->view());
  auto matrix = PackedMatrix::Create(views, bias, backend);
  EXPECT_TRUE(matrix.ok()) << matrix.status();
  return matrix.ok() ? *std::move(matrix) : nullptr;
}

std::vector<float> RandomBias(int64_t n, uint32_t seed) {
  std::vector<float> bias;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < n; ++i) bias.push_back(normal(random));
  return bias;
}

// Rows [rows, N] of the product. Checks that nothing outside of the result is written.
std::vector<float> Multiply(const PackedMatrix& matrix, const float* x, int64_t x_stride,
                            int64_t rows, ParallelRunner& runner, GemmWorkspace& workspace) {
  const int64_t gap = 5, padded = matrix.PaddedColumns(), stride = padded + gap;
  std::vector<float> y(static_cast<size_t>((rows + 1) * stride), kNaN);
  const absl::Status status =
      matrix.Multiply(x, x_stride, rows, y.data(), stride, runner, workspace);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<float> result;
  for (int64_t r = 0; r <= rows; ++r) {
    const float* const row = y.data() + r * stride;
    if (r < rows) result.insert(result.end(), row, row + matrix.out());
    for (int64_t c = r < rows ? padded : 0; c < stride; ++c) EXPECT_TRUE(std::isnan(row[c]));
  }
  return result;
}

std::vector<float> Multiply(const PackedMatrix& matrix, const TestRows& x, int64_t rows) {
  InlineRunner runner;
  const auto workspace = MakeGemmWorkspace();
  return Multiply(matrix, x.row(0), x.stride, rows, runner, *workspace);
}

void ExpectNear(const std::vector<float>& actual, const std::vector<Expected>& expected) {
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::abs(actual[i] - expected[i].value), expected[i].tolerance) << "element " << i;
  }
}

void ExpectSameBits(const std::vector<float>& actual, const float* expected) {
  ASSERT_EQ(std::memcmp(actual.data(), expected, actual.size() * sizeof(float)), 0);
}

// The twin, every row count against the first rows of the largest, and both backends against each
// other where oneDNN has the panel kernel's bits.
void CheckEveryRowCount(const std::vector<const TestWeights*>& weights,
                        const std::vector<float>& bias, const TestRows& x) {
  const auto native = Pack(weights, bias, GemmBackend::kNative);
  const auto onednn = Pack(weights, bias, GemmBackend::kOneDnn);
  ASSERT_NE(native, nullptr);
  ASSERT_NE(onednn, nullptr);
  const std::vector<Expected> expected = Float64Product(x, kMostRows, weights, bias);
  const std::vector<float> reference = Multiply(*native, x, kMostRows);
  ASSERT_NO_FATAL_FAILURE(ExpectNear(reference, expected));
  for (const int64_t rows : kRowCounts) {
    SCOPED_TRACE(testing::Message() << rows << " rows");
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(Multiply(*native, x, rows), reference.data()));
    const std::vector<float> y = Multiply(*onednn, x, rows);
    ASSERT_NO_FATAL_FAILURE(ExpectNear(y, expected));
    if (rows < 96 || OneDnnMatchesPanels()) {
      ASSERT_NO_FATAL_FAILURE(ExpectSameBits(y, reference.data()));
    }
  }
}

class PackedMatrixOfType : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(All, PackedMatrixOfType,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST_P(PackedMatrixOfType, EveryShapeMatchesTheFloat64TwinAndKeepsItsBits) {
  for (const int64_t k : {1, 2, 15, 16, 17, 255, 256, 257, 300, 511, 512, 513, 600, 1031}) {
    const TestRows x(kMostRows, k, 3);
    for (const int64_t n : {1, 15, 16, 17, 31, 40, 96}) {
      SCOPED_TRACE(testing::Message() << "K " << k << ", N " << n);
      const WeightOrder order = (k + n) % 2 == 0 ? WeightOrder::kOutIn : WeightOrder::kInOut;
      const TestWeights weights(GetParam(), k, n, order, 4);
      const std::vector<float> bias = n % 3 == 0 ? std::vector<float>() : RandomBias(n, 5);
      ASSERT_NO_FATAL_FAILURE(CheckEveryRowCount({&weights}, bias, x));
    }
  }
}

TEST_P(PackedMatrixOfType, StridesOfTheWeightDoNotMatter) {
  constexpr int64_t kIn = 70, kOut = 33;
  const TestRows x(100, kIn, 3);
  const TestWeights out_in(GetParam(), kIn, kOut, WeightOrder::kOutIn, 4);
  const TestWeights in_out(GetParam(), kIn, kOut, WeightOrder::kInOut, 4);
  ASSERT_EQ(out_in.At(69, 32), in_out.At(69, 32));
  const std::vector<float> y = Multiply(*Pack({&out_in}, {}, GemmBackend::kOneDnn), x, 100);
  ExpectSameBits(Multiply(*Pack({&in_out}, {}, GemmBackend::kOneDnn), x, 100), y.data());
}

TEST_P(PackedMatrixOfType, RowHasTheSameBitsAloneAndInAnyBatch) {
  constexpr int64_t kIn = 513;
  const TestRows x(kMostRows, kIn, 3);
  const TestWeights weights(GetParam(), kIn, 40, WeightOrder::kOutIn, 4);
  const auto matrix = Pack({&weights}, RandomBias(40, 5), GemmBackend::kOneDnn);
  InlineRunner runner;
  const auto workspace = MakeGemmWorkspace();
  std::vector<float> alone;
  for (int64_t r = 0; r < kMostRows; ++r) {
    const auto row = Multiply(*matrix, x.row(r), x.stride, 1, runner, *workspace);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const int64_t first = random() % kMostRows;
    const int64_t rows = 1 + random() % (kMostRows - first);
    if (rows >= 96 && !OneDnnMatchesPanels()) continue;
    SCOPED_TRACE(testing::Message() << "rows " << first << " to " << first + rows);
    ASSERT_NO_FATAL_FAILURE(
        ExpectSameBits(Multiply(*matrix, x.row(first), x.stride, rows, runner, *workspace),
                       alone.data() + first * 40));
  }
}

TEST_P(PackedMatrixOfType, WorkerCountDoesNotChangeBits) {
  constexpr int64_t kIn = 300, kOut = 200, kRows = 1000;
  const TestRows x(kRows, kIn, 3);
  const TestWeights weights(GetParam(), kIn, kOut, WeightOrder::kOutIn, 4);
  for (const GemmBackend backend : {GemmBackend::kNative, GemmBackend::kOneDnn}) {
    const auto matrix = Pack({&weights}, RandomBias(kOut, 5), backend);
    const auto workspace = MakeGemmWorkspace();
    for (const int64_t rows : {int64_t{1}, int64_t{40}, int64_t{97}, kRows}) {
      const std::vector<float> y = Multiply(*matrix, x, rows);
      for (int workers = 1; workers <= 4; ++workers) {
        WorkerPool pool(workers);
        ASSERT_NO_FATAL_FAILURE(ExpectSameBits(
            Multiply(*matrix, x.row(0), x.stride, rows, pool, *workspace), y.data()));
      }
    }
  }
}

TEST_P(PackedMatrixOfType, ThreadsMayMultiplyWithWorkspacesOfTheirOwn) {
  constexpr int64_t kIn = 260, kOut = 48;
  const TestRows x(200, kIn, 3);
  const TestWeights weights(GetParam(), kIn, kOut, WeightOrder::kOutIn, 4);
  const auto matrix = Pack({&weights}, {}, GemmBackend::kOneDnn);
  const std::vector<float> y = Multiply(*matrix, x, 200);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat)
        ExpectSameBits(Multiply(*matrix, x, 200), y.data());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(PackedMatrixOfType, NonFiniteRowLeavesOthersAlone) {
  constexpr int64_t kIn = 64, kOut = 20;
  TestRows x(100, kIn, 3);
  const TestWeights weights(GetParam(), kIn, kOut, WeightOrder::kOutIn, 4);
  const auto matrix = Pack({&weights}, {}, GemmBackend::kOneDnn);
  std::vector<float> clean = Multiply(*matrix, x, 100);
  x.row(50)[13] = kNaN;
  const std::vector<float> y = Multiply(*matrix, x, 100);
  for (int64_t c = 0; c < kOut; ++c) {
    EXPECT_TRUE(std::isnan(y[static_cast<size_t>(50 * kOut + c)]));
    clean[static_cast<size_t>(50 * kOut + c)] = y[static_cast<size_t>(50 * kOut + c)];
  }
  ExpectSameBits(y, clean.data());
}

TEST(PackedMatrix, JoinedMatricesLieSideBySide) {
  constexpr int64_t kIn = 150;
  const TestRows x(kMostRows, kIn, 3);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const TestWeights q(type, kIn, 24, WeightOrder::kOutIn, 4);
    const TestWeights k(type, kIn, 7, WeightOrder::kInOut, 5);
    const TestWeights v(type, kIn, 18, WeightOrder::kOutIn, 6);
    EXPECT_EQ(Pack({&q, &k, &v}, {}, GemmBackend::kNative)->dtype(), type);
    ASSERT_NO_FATAL_FAILURE(CheckEveryRowCount({&q, &k, &v}, RandomBias(49, 7), x));
  }
}

TEST(PackedMatrix, MixedTypesBecomeF32) {
  constexpr int64_t kIn = 150;
  const TestRows x(kMostRows, kIn, 3);
  const TestWeights q(DType::kBF16, kIn, 24, WeightOrder::kOutIn, 4);
  const TestWeights k(DType::kF16, kIn, 7, WeightOrder::kInOut, 5);
  const TestWeights v(DType::kF32, kIn, 18, WeightOrder::kOutIn, 6);
  EXPECT_EQ(Pack({&q, &k}, {}, GemmBackend::kNative)->dtype(), DType::kF32);
  ASSERT_NO_FATAL_FAILURE(CheckEveryRowCount({&q, &k, &v}, RandomBias(49, 7), x));
}

// The sum is finished before the bias comes: here adding it first would lose it.
TEST(PackedMatrix, BiasIsAddedAfterTheProduct) {
  const std::vector<float> weights = {1.0f, 1.0f};
  const std::vector<float> x(200 * 2, 0.0f);
  std::vector<float> rows = x;
  for (int64_t r = 0; r < 200; ++r) {
    rows[static_cast<size_t>(2 * r)] = 0x1p30f;
    rows[static_cast<size_t>(2 * r + 1)] = -0x1p30f;
  }
  const WeightView view{DType::kF32, weights.data(), 2, 1, 1, 2};
  const std::vector<float> bias = {0.5f};
  for (const GemmBackend backend : {GemmBackend::kNative, GemmBackend::kOneDnn}) {
    const auto matrix = PackedMatrix::Create({view}, bias, backend);
    ASSERT_TRUE(matrix.ok());
    InlineRunner runner;
    const auto workspace = MakeGemmWorkspace();
    for (const float y : Multiply(**matrix, rows.data(), 2, 200, runner, *workspace)) {
      EXPECT_EQ(y, 0.5f);
    }
  }
}

TEST(PackedMatrix, NoRowsIsNoWork) {
  const TestWeights weights(DType::kF32, 3, 3, WeightOrder::kOutIn, 1);
  const auto matrix = Pack({&weights}, {}, GemmBackend::kOneDnn);
  InlineRunner runner;
  const auto workspace = MakeGemmWorkspace();
  EXPECT_TRUE(matrix->Multiply(nullptr, 3, 0, nullptr, 16, runner, *workspace).ok());
}

TEST(PackedMatrix, OneWorkspaceServesMatricesOfAnySize) {
  const auto workspace = MakeGemmWorkspace();
  InlineRunner runner;
  for (const int64_t k : {600, 3, 1031, 17}) {
    const TestRows x(200, k, 1);
    const TestWeights weights(DType::kBF16, k, 33, WeightOrder::kOutIn, 2);
    const auto matrix = Pack({&weights}, {}, GemmBackend::kOneDnn);
    for (const int64_t rows : {200, 5, 96}) {
      const std::vector<float> y = Multiply(*matrix, x, rows);
      ExpectSameBits(Multiply(*matrix, x.row(0), x.stride, rows, runner, *workspace), y.data());
    }
  }
}

TEST(PackedMatrix, DescribesItself) {
  const TestWeights weights(DType::kBF16, 10, 17, WeightOrder::kOutIn, 1);
  const auto native = Pack({&weights}, RandomBias(17, 1), GemmBackend::kNative);
  EXPECT_EQ(native->in(), 10);
  EXPECT_EQ(native->out(), 17);
  EXPECT_EQ(native->PaddedColumns(), 32);
  EXPECT_EQ(native->bytes(), 32 * 10 * 2 + 32 * 4);
  EXPECT_EQ(native->dtype(), DType::kBF16);
  EXPECT_EQ(native->implementation(), "native");
  EXPECT_FALSE(native->uses_onednn());
  const auto onednn = Pack({&weights}, {}, GemmBackend::kOneDnn);
  EXPECT_EQ(onednn->bytes(), 32 * 10 * 2);
  EXPECT_NE(onednn->implementation(), "native");
  EXPECT_TRUE(onednn->uses_onednn());
  EXPECT_NE(onednn->implementation(), "");
}

TEST(PackedMatrix, AutoChoosesOneOfTheTwo) {
  const TestWeights weights(DType::kF32, 100, 300, WeightOrder::kOutIn, 1);
  const TestRows x(100, 100, 2);
  const auto chosen = Pack({&weights}, {}, GemmBackend::kAuto);
  const auto native = Pack({&weights}, {}, GemmBackend::kNative);
  const auto onednn = Pack({&weights}, {}, GemmBackend::kOneDnn);
  EXPECT_THAT(chosen->implementation(),
              testing::AnyOf(native->implementation(), onednn->implementation()));
  const PackedMatrix& same = chosen->implementation() == "native" ? *native : *onednn;
  ExpectSameBits(Multiply(*chosen, x, 100), Multiply(same, x, 100).data());
}

TEST(PackedMatrix, BadInputIsRefused) {
  const std::vector<float> data(64, 0.0f);
  const auto create = [&](const std::vector<WeightView>& views, const std::vector<float>& bias) {
    return Reason(PackedMatrix::Create(views, bias, GemmBackend::kNative).status());
  };
  const WeightView good{DType::kF32, data.data(), 4, 4, 1, 4};
  EXPECT_EQ(create({good, good}, std::vector<float>(8)), "");
  EXPECT_EQ(create({}, {}), "BAD_SHAPE");
  EXPECT_EQ(create({good}, {1.0f}), "BAD_SHAPE");
  EXPECT_EQ(create({good}, std::vector<float>(16)), "BAD_SHAPE");
  WeightView view = good;
  view.in = 3;
  EXPECT_EQ(create({good, view}, {}), "BAD_SHAPE");
  view.in = 0;
  EXPECT_EQ(create({view}, {}), "BAD_SHAPE");
  view = good;
  view.out = 0;
  EXPECT_EQ(create({good, view}, {}), "BAD_SHAPE");
  view.out = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(create({good, view}, {}), "BAD_SHAPE");
  view.out = int64_t{1} << 39;
  EXPECT_EQ(create({view}, {}), "BAD_SHAPE");
  view = good;
  view.dtype = DType::kI64;
  EXPECT_EQ(create({view}, {}), "BAD_DTYPE");
}

TEST(GemmNumerics, NamesWhetherOneDnnHasThePanelKernelsBits) {
  const TestWeights weights(DType::kF32, 600, 16, WeightOrder::kOutIn, 1);
  ASSERT_NE(Pack({&weights}, {}, GemmBackend::kOneDnn), nullptr);
  EXPECT_EQ(GemmNumerics(), OneDnnMatchesPanels() ? "native" : "onednn");
}

TEST(GemmNumerics, OneDnnHasThePanelKernelsBitsOnAvx2) {
  if (std::string(simd::InstructionSet()) != "AVX2") GTEST_SKIP() << "this machine is not AVX2";
  const TestWeights weights(DType::kF32, 600, 16, WeightOrder::kOutIn, 1);
  ASSERT_NE(Pack({&weights}, {}, GemmBackend::kOneDnn), nullptr);
  // Held to SSE4.1, oneDNN multiplies and adds with two roundings: the check must see it.
  const char* const isa = std::getenv("ONEDNN_MAX_CPU_ISA");
  EXPECT_EQ(OneDnnMatchesPanels(), isa == nullptr || std::string(isa) != "SSE41");
}

TEST(OneDnn, VersionIsThreeNumbers) {
  EXPECT_THAT(OneDnnVersion(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace attnserve
