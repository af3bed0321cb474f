#include "lib/simd/panel_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/aligned_buffer.h"
#include "lib/simd/vector_ops.h"
#include "tests/unit/simd/targets_test_util.h"

namespace attnserve::simd {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DType kWeightTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// x [rows, k] and W [k, columns], rounded to a weight type.
struct Product {
  Product(int64_t rows, int64_t k, int64_t columns, DType type, uint32_t seed)
      : rows(rows), k(k), columns(columns), type(type) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    x.resize(static_cast<size_t>(rows * k));
    weights.resize(static_cast<size_t>(k * columns));
    for (float& value : x) value = normal(random);
    for (float& value : weights) value = Rounded(normal(random));
  }

  float Rounded(float value) const {
    if (type == DType::kF16) return F16ToF32(F32ToF16(value));
    return type == DType::kBF16 ? Bf16ToF32(F32ToBf16(value)) : value;
  }

  float X(int64_t r, int64_t i) const { return x[static_cast<size_t>(r * k + i)]; }
  float W(int64_t i, int64_t c) const { return weights[static_cast<size_t>(i * columns + c)]; }

  // Panels whose padding columns are zero.
  AlignedBuffer<uint8_t> Panels() const {
    const size_t bytes =
        static_cast<size_t>(PanelCount(columns) * kPanelWidth * k) * ElementSize(type);
    AlignedBuffer<uint8_t> panels(bytes);
    std::fill_n(panels.data(), bytes, uint8_t{0});
    for (int64_t c = 0; c < columns; ++c) {
      PackColumn(DType::kF32, &weights[static_cast<size_t>(c)], columns, k, c, type, panels.data());
    }
    return panels;
  }

  int64_t rows;
  int64_t k;
  int64_t columns;
  DType type;
  std::vector<float> x;
  std::vector<float> weights;
};

// y [rows, padded columns + 3]; the three columns beyond must stay NaN.
std::vector<float> Multiply(const Product& p, int64_t first_row, int64_t rows) {
  const int64_t stride = PanelCount(p.columns) * kPanelWidth + 3;
  std::vector<float> y(static_cast<size_t>(rows * stride), kNan);
  AlignedBuffer<float> packed(PackedRowsFloats(rows, p.k));
  PackRows(&p.x[static_cast<size_t>(first_row * p.k)], p.k, rows, p.k, packed.data());
  const AlignedBuffer<uint8_t> panels = p.Panels();
  PanelProduct(packed.data(), rows, p.k, p.type, panels.data(), 0, PanelCount(p.columns), y.data(),
               stride);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = stride - 3; c < stride; ++c) {
      EXPECT_TRUE(std::isnan(y[static_cast<size_t>(r * stride + c)])) << "written beyond a panel";
    }
  }
  return y;
}

// The recipe of the header, one element at a time.
float Recipe(const Product& p, int64_t r, int64_t c) {
  const bool fused = RoundingsPerStep() == 1.0;
  float total = 0.0f;
  for (int64_t begin = 0; begin < p.k;) {
    const int64_t rest = p.k - begin;
    const int64_t depth = rest >= 512 ? 256 : rest > 256 ? (rest + 1) / 2 : rest;
    float sum = 0.0f;
    for (int64_t i = begin; i < begin + depth; ++i) {
      sum = fused ? std::fma(p.X(r, i), p.W(i, c), sum) : p.X(r, i) * p.W(i, c) + sum;
    }
    total = begin == 0 ? sum : total + sum;
    begin += depth;
  }
  return total;
}

void ExpectMatchesTwins(const Product& p) {
  const int64_t stride = PanelCount(p.columns) * kPanelWidth + 3;
  const std::vector<float> y = Multiply(p, 0, p.rows);
  // One rounding a step (two where products are rounded too) and one for each block's sum.
  const double unit = 0x1p-24;
  const double steps =
      RoundingsPerStep() * static_cast<double>(p.k) + static_cast<double>(p.k) / 128.0 + 1.0;
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t c = 0; c < stride - 3; ++c) {
      const float actual = y[static_cast<size_t>(r * stride + c)];
      if (c >= p.columns) {
        ASSERT_EQ(actual, 0.0f) << "padding column " << c;
        continue;
      }
      double exact = 0.0;
      double absolute = 0.0;
      for (int64_t i = 0; i < p.k; ++i) {
        const double term = static_cast<double>(p.X(r, i)) * static_cast<double>(p.W(i, c));
        exact += term;
        absolute += std::fabs(term);
      }
      ASSERT_NEAR(static_cast<double>(actual), exact, steps * unit * absolute) << r << ", " << c;
      ASSERT_EQ(actual, Recipe(p, r, c)) << r << ", " << c;
    }
  }
}

TEST(ReductionBlock, FollowsTheRule) {
  EXPECT_EQ(ReductionBlock(0), 0);
  EXPECT_EQ(ReductionBlock(1), 1);
  EXPECT_EQ(ReductionBlock(256), 256);
  EXPECT_EQ(ReductionBlock(257), 129);
  EXPECT_EQ(ReductionBlock(511), 256);
  EXPECT_EQ(ReductionBlock(512), 256);
  EXPECT_EQ(ReductionBlock(11008), 256);
}

TEST(PanelProduct, EveryRowCountAndTypeMatches) {
  ForEachTarget([] {
    for (const DType type : kWeightTypes) {
      for (int64_t rows = 1; rows <= 14; ++rows) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << DTypeName(type));
        ExpectMatchesTwins(Product(rows, 67, 33, type, static_cast<uint32_t>(rows)));
      }
    }
  });
}

TEST(PanelProduct, EveryReductionSizeMatches) {
  for (const int64_t k : {1, 2, 15, 16, 17, 255, 256, 257, 300, 511, 512, 513, 767, 768, 1025}) {
    for (const DType type : kWeightTypes) {
      SCOPED_TRACE(testing::Message() << "k " << k);
      ExpectMatchesTwins(Product(7, k, 17, type, static_cast<uint32_t>(k)));
    }
  }
}

TEST(PanelProduct, EveryColumnCountMatches) {
  for (const int64_t columns : {1, 15, 16, 17, 31, 32, 33, 48}) {
    ExpectMatchesTwins(Product(5, 130, columns, DType::kF32, static_cast<uint32_t>(columns)));
  }
}

// Many rows take another order of loops, in chunks.
TEST(PanelProduct, ManyRowsMatch) {
  for (const DType type : kWeightTypes) {
    ExpectMatchesTwins(Product(211, 600, 33, type, 1));
    ExpectMatchesTwins(Product(389, 257, 16, type, 2));
  }
}

TEST(PanelProduct, RowHasSameBitsAloneAndAmongOthers) {
  for (const DType type : kWeightTypes) {
    const Product p(200, 700, 40, type, 3);
    const int64_t stride = PanelCount(p.columns) * kPanelWidth + 3;
    const std::vector<float> together = Multiply(p, 0, p.rows);
    for (const int64_t count : {1, 2, 5, 11, 25}) {
      for (int64_t first = 0; first + count <= p.rows; first += 37) {
        const std::vector<float> alone = Multiply(p, first, count);
        for (int64_t r = 0; r < count; ++r) {
          ASSERT_EQ(std::memcmp(&alone[static_cast<size_t>(r * stride)],
                                &together[static_cast<size_t>((first + r) * stride)],
                                static_cast<size_t>(stride - 3) * sizeof(float)),
                    0);
        }
      }
    }
  }
}

TEST(PanelProduct, WritesOnlyThePanelsAskedFor) {
  const Product p(3, 50, 64, DType::kBF16, 4);
  const std::vector<float> whole = Multiply(p, 0, 3);
  AlignedBuffer<float> packed(PackedRowsFloats(3, 50));
  PackRows(p.x.data(), 50, 3, 50, packed.data());
  std::vector<float> y(3 * 67, kNan);
  PanelProduct(packed.data(), 3, 50, p.type, p.Panels().data(), 1, 3, y.data(), 67);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t column = i % 67;
    if (column >= 16 && column < 48) {
      EXPECT_EQ(y[i], whole[i]);
    } else {
      EXPECT_TRUE(std::isnan(y[i])) << "column " << column;
    }
  }
}

TEST(PanelProduct, NonFiniteWeightStaysInItsColumn) {
  for (const DType type : kWeightTypes) {
    for (const float odd : {kNan, std::numeric_limits<float>::infinity()}) {
      Product p(7, 40, 32, type, 5);
      p.weights[static_cast<size_t>(20 * 32 + 11)] = odd;
      ForEachTarget([&] {
        const std::vector<float> y = Multiply(p, 0, 7);
        for (size_t i = 0; i < y.size(); ++i) {
          if (i % 35 < 32) {
            EXPECT_EQ(!std::isfinite(y[i]), i % 35 == 11) << i;
          }
        }
      });
    }
  }
}

TEST(PanelProduct, TargetsOfOneFamilyAgree) {
  for (const DType type : kWeightTypes) {
    const Product p(20, 300, 48, type, 6);
    std::map<std::string, std::vector<float>> of_family;
    ForEachTarget([&] {
      const std::vector<float> y = Multiply(p, 0, 20);
      const auto [first, inserted] = of_family.emplace(KernelFamily(), y);
      if (inserted) return;
      ASSERT_EQ(std::memcmp(y.data(), first->second.data(), y.size() * sizeof(float)), 0);
    });
  }
}

}  // namespace
}  // namespace attnserve::simd
