#include "lib/cache/kv_sequence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "lib/base/errors.h"

namespace attnserve {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// `value` as an element of `type` holds it.
float Rounded(DType type, float value) {
  if (type == DType::kF16) return F16ToF32(F32ToF16(value));
  if (type == DType::kBF16) return Bf16ToF32(F32ToBf16(value));
  return value;
}

// Random vectors [tokens, heads, size], with gaps of NaN between vectors and tokens, at an odd
// address.
class Vectors {
 public:
  Vectors(DType dtype, int64_t tokens, int64_t heads, int64_t size, uint32_t seed)
      : head_stride_(size + 3), token_stride_(heads * head_stride_ + 5), dtype_(dtype) {
    const int64_t elements = tokens * token_stride_;
    values_.assign(static_cast<size_t>(elements), kNaN);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < size; ++i) values_[Index(t, h, i)] = Rounded(dtype, normal(random));
      }
    }
    bytes_.resize(values_.size() * ElementSize(dtype) + 1);
    view_ = {dtype, bytes_.data() + 1, tokens, heads, size, token_stride_, head_stride_};
    Store();
  }

  void Set(int64_t token, int64_t head, int64_t i, float value) {
    values_[Index(token, head, i)] = value;
    Store();
  }
  float At(int64_t token, int64_t head, int64_t i) const { return values_[Index(token, head, i)]; }

  // Tokens [begin, begin + count).
  HeadsView Slice(int64_t begin, int64_t count) const {
    HeadsView view = view_;
    view.data = static_cast<const uint8_t*>(view_.data) +
                static_cast<size_t>(begin * token_stride_) * ElementSize(dtype_);
    view.tokens = count;
    return view;
  }
  const HeadsView& view() const { return view_; }

 private:
  size_t Index(int64_t token, int64_t head, int64_t i) const {
    return static_cast<size_t>(token * token_stride_ + head * head_stride_ + i);
  }
  void Store() {
    StoreFromF32(values_.data(), static_cast<int64_t>(values_.size()), dtype_, bytes_.data() + 1);
  }

  int64_t head_stride_, token_stride_;
  DType dtype_;
  std::vector<float> values_;
  std::vector<uint8_t> bytes_;
  HeadsView view_;
};

// Makes the next blocks of `layout` come up full of `byte`: the pool reuses what was freed.
void DirtyBlocks(KvBlockPool& pool, const KvLayout& layout, int64_t count, int byte) {
  std::vector<void*> blocks;
  for (int64_t i = 0; i < count; ++i) blocks.push_back(pool.Allocate(layout.block_bytes()));
  for (void* block : blocks) {
    std::memset(block, byte, static_cast<size_t>(layout.block_bytes()));
    pool.Free(block, layout.block_bytes());
  }
}

float Element(DType type, const void* data, int64_t index) {
  float value;
  LoadAsF32(type,
            static_cast<const uint8_t*>(data) + index * static_cast<int64_t>(ElementSize(type)), 1,
            &value);
  return value;
}

// Compares token `index` of every head with token `source_token`, through the layout of
// kv_layout.h and through ReadToken.
void ExpectToken(const KvSequence& sequence, int64_t index, const Vectors& keys,
                 const Vectors& values, int64_t source_token) {
  const KvLayout& layout = sequence.layout();
  const int64_t block = index / 64, slot = index % 64;
  std::vector<float> key(static_cast<size_t>(layout.key_head_size), kNaN);
  std::vector<float> value(static_cast<size_t>(layout.value_head_size), kNaN);
  for (int64_t h = 0; h < layout.kv_heads; ++h) {
    sequence.ReadToken(index, h, key.data(), value.data());
    for (int64_t i = 0; i < layout.key_head_size; ++i) {
      const float expected = Rounded(layout.dtype, keys.At(source_token, h, i));
      ASSERT_EQ(key[static_cast<size_t>(i)], expected) << "token " << index << " key " << i;
      const int64_t place = slot / 16 * layout.key_head_size * 16 + i * 16 + slot % 16;
      ASSERT_EQ(Element(layout.dtype, sequence.keys(block, h), place), expected);
    }
    for (int64_t i = 0; i < layout.padded_value_size(); ++i) {
      const bool padding = i >= layout.value_head_size;
      const float expected = padding ? 0.0f : Rounded(layout.dtype, values.At(source_token, h, i));
      if (!padding) {
        ASSERT_EQ(value[static_cast<size_t>(i)], expected) << "token " << index;
      }
      const int64_t place = i / 16 * 64 * 16 + slot * 16 + i % 16;
      ASSERT_EQ(Element(layout.dtype, sequence.values(block, h), place), expected);
    }
  }
}

struct Sizes {
  int64_t heads, key, value;
};

class KvSequenceOfType : public testing::TestWithParam<std::tuple<DType, DType>> {};

INSTANTIATE_TEST_SUITE_P(All, KvSequenceOfType,
                         testing::Combine(testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                                          testing::Values(DType::kF32, DType::kF16, DType::kBF16)),
                         [](const auto& info) {
                           return "Cache" + std::string(DTypeName(std::get<0>(info.param))) +
                                  "From" + std::string(DTypeName(std::get<1>(info.param)));
                         });

TEST_P(KvSequenceOfType, ChunksOfAnySizeReadBackRounded) {
  const auto [cache_type, source_type] = GetParam();
  constexpr int64_t kTokens = 150;
  for (const Sizes& sizes : {Sizes{1, 1, 1},
                             {3, 15, 17},
                             {2, 16, 16},
                             {2, 17, 15},
                             {1, 64, 33},
                             {2, 255, 257},
                             {1, 300, 512}}) {
    SCOPED_TRACE(testing::Message()
                 << sizes.heads << " heads of " << sizes.key << " and " << sizes.value);
    const KvLayout layout{sizes.heads, sizes.key, sizes.value, cache_type};
    KvBlockPool pool(kUnlimited);
    DirtyBlocks(pool, layout, 3, 0xff);
    const Vectors keys(source_type, kTokens, sizes.heads, sizes.key, 1);
    const Vectors values(source_type, kTokens, sizes.heads, sizes.value, 2);
    KvSequence sequence(layout, &pool);
    std::mt19937 random(7);
    while (sequence.length() < kTokens) {
      const int64_t first = sequence.length();
      const int64_t count = std::min<int64_t>(kTokens - first, 1 + random() % 70);
      ASSERT_TRUE(sequence.Reserve(first + count).ok());
      sequence.Extend(count, nullptr);
      const int64_t split = random() % (sizes.heads + 1);
      sequence.WriteTokens(first, keys.Slice(first, count), values.Slice(first, count), 0, split);
      sequence.WriteTokens(first, keys.Slice(first, count), values.Slice(first, count), split,
                           sizes.heads);
    }
    for (int64_t t = 0; t < kTokens; ++t)
      ASSERT_NO_FATAL_FAILURE(ExpectToken(sequence, t, keys, values, t));
    for (int64_t block = 0; block < sequence.block_count(); ++block) {
      for (int64_t h = 0; h < sizes.heads; ++h) EXPECT_TRUE(sequence.values_finite(block, h));
    }
  }
}

TEST(KvSequence, ReserveChargesWholeBlocks) {
  const KvLayout layout{2, 8, 24, DType::kF16};
  KvBlockPool pool(kUnlimited);
  KvSequence sequence(layout, &pool);
  EXPECT_EQ(sequence.capacity(), 0);
  EXPECT_EQ(sequence.BytesToReserve(0), 0);
  EXPECT_EQ(sequence.BytesToReserve(1), layout.block_bytes());
  EXPECT_EQ(sequence.BytesToReserve(64), layout.block_bytes());
  EXPECT_EQ(sequence.BytesToReserve(65), 2 * layout.block_bytes());
  ASSERT_TRUE(sequence.Reserve(65).ok());
  EXPECT_EQ(sequence.capacity(), 128);
  EXPECT_EQ(sequence.length(), 0);
  EXPECT_EQ(sequence.BytesToReserve(128), 0);
  EXPECT_EQ(sequence.BytesToReserve(129), layout.block_bytes());
  EXPECT_EQ(sequence.bytes(), 2 * layout.block_bytes());
  EXPECT_EQ(pool.usage().charged_bytes, 2 * layout.block_bytes());
  EXPECT_EQ(pool.usage().block_bytes, 2 * layout.block_bytes());
  ASSERT_TRUE(sequence.Reserve(1).ok());
  EXPECT_EQ(sequence.capacity(), 128);
}

TEST(KvSequence, ReserveBeyondTheBudgetChangesNothing) {
  const KvLayout layout{1, 16, 16, DType::kF32};
  KvBlockPool pool(3 * layout.block_bytes() - 1);
  KvSequence sequence(layout, &pool);
  ASSERT_TRUE(sequence.Reserve(64).ok());
  sequence.Extend(10, nullptr);
  const absl::Status status = sequence.Reserve(192);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(GetErrorDetail(status)->reason, "KV_BUDGET");
  EXPECT_EQ(sequence.capacity(), 64);
  EXPECT_EQ(sequence.length(), 10);
  EXPECT_EQ(pool.usage().charged_bytes, layout.block_bytes());
  EXPECT_TRUE(sequence.Reserve(128).ok());
}

TEST(KvSequence, ReserveWithoutSystemMemoryRefundsAndFails) {
  const KvLayout layout{1, int64_t{1} << 45, 16, DType::kF32};
  KvBlockPool pool(kUnlimited);
  KvSequence sequence(layout, &pool);
  const absl::Status status = sequence.Reserve(1);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(GetErrorDetail(status)->reason, "KV_BUDGET");
  EXPECT_EQ(sequence.capacity(), 0);
  EXPECT_EQ(pool.usage().charged_bytes, 0);
}

TEST(KvSequence, EverythingIsRefundedAtTheEnd) {
  const KvLayout layout{2, 5, 9, DType::kBF16};
  KvBlockPool pool(kUnlimited);
  {
    KvSequence a(layout, &pool), b(layout, &pool);
    ASSERT_TRUE(a.Reserve(1000).ok());
    ASSERT_TRUE(b.Reserve(1).ok());
    EXPECT_EQ(pool.usage().charged_bytes, 17 * layout.block_bytes());
  }
  EXPECT_EQ(pool.usage().charged_bytes, 0);
  EXPECT_EQ(pool.usage().block_bytes, 0);
}

TEST(KvSequence, TruncateFreesBlocksBeyondTheKeptCapacity) {
  const KvLayout layout{1, 4, 4, DType::kF32};
  KvBlockPool pool(kUnlimited);
  KvSequence sequence(layout, &pool);
  ASSERT_TRUE(sequence.Reserve(300).ok());
  sequence.Extend(300, nullptr);
  sequence.Truncate(129, 200);
  EXPECT_EQ(sequence.length(), 129);
  EXPECT_EQ(sequence.capacity(), 256);
  sequence.Truncate(129);
  EXPECT_EQ(sequence.capacity(), 192);
  sequence.Truncate(128, 1000);  // keeps, does not add
  EXPECT_EQ(sequence.capacity(), 192);
  sequence.Truncate(128);
  EXPECT_EQ(sequence.capacity(), 128);
  EXPECT_EQ(pool.usage().charged_bytes, 2 * layout.block_bytes());
  sequence.Truncate(0);
  EXPECT_EQ(sequence.capacity(), 0);
  EXPECT_EQ(pool.usage().charged_bytes, 0);
}

TEST(KvSequence, RollBackAndRetryKeepsTheEarlierTokens) {
  const KvLayout layout{1, 3, 3, DType::kF32};
  KvBlockPool pool(kUnlimited);
  const Vectors keys(DType::kF32, 140, 1, 3, 1), values(DType::kF32, 140, 1, 3, 2);
  KvSequence sequence(layout, &pool);
  ASSERT_TRUE(sequence.Reserve(140).ok());
  sequence.Extend(60, nullptr);
  sequence.WriteTokens(0, keys.Slice(0, 60), values.Slice(0, 60), 0, 1);
  sequence.Extend(80, nullptr);
  sequence.WriteTokens(60, keys.Slice(0, 80), values.Slice(0, 80), 0, 1);
  sequence.Truncate(60);
  ASSERT_TRUE(sequence.Reserve(70).ok());
  sequence.Extend(10, nullptr);
  sequence.WriteTokens(60, keys.Slice(100, 10), values.Slice(100, 10), 0, 1);
  for (int64_t t = 0; t < 60; ++t)
    ASSERT_NO_FATAL_FAILURE(ExpectToken(sequence, t, keys, values, t));
  for (int64_t t = 60; t < 70; ++t)
    ASSERT_NO_FATAL_FAILURE(ExpectToken(sequence, t, keys, values, t + 40));
}

TEST(KvSequence, ReadTokenLeavesNullTargetsOut) {
  const KvLayout layout{1, 2, 2, DType::kF32};
  KvBlockPool pool(kUnlimited);
  const Vectors keys(DType::kF32, 1, 1, 2, 1), values(DType::kF32, 1, 1, 2, 2);
  KvSequence sequence(layout, &pool);
  ASSERT_TRUE(sequence.Reserve(1).ok());
  sequence.Extend(1, nullptr);
  sequence.WriteTokens(0, keys.view(), values.view(), 0, 1);
  float key[2], value[2];
  sequence.ReadToken(0, 0, key, nullptr);
  sequence.ReadToken(0, 0, nullptr, value);
  EXPECT_EQ(key[1], keys.At(0, 0, 1));
  EXPECT_EQ(value[1], values.At(0, 0, 1));
}

TEST(KvSequence, NonFiniteValuesAreRecordedByBlockAndHead) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      const KvLayout layout{3, 2, 20, type};
      KvBlockPool pool(kUnlimited);
      const Vectors keys(DType::kF32, 130, 3, 2, 1);
      Vectors values(DType::kF32, 130, 3, 20, 2);
      values.Set(70, 1, 19, bad);
      KvSequence sequence(layout, &pool);
      ASSERT_TRUE(sequence.Reserve(130).ok());
      sequence.Extend(130, nullptr);
      sequence.WriteTokens(0, keys.view(), values.view(), 0, 3);
      for (int64_t block = 0; block < 3; ++block) {
        for (int64_t h = 0; h < 3; ++h) {
          EXPECT_EQ(sequence.values_finite(block, h), !(block == 1 && h == 1));
        }
      }
      sequence.Truncate(64);  // the block goes; the next in its place is clean
      ASSERT_TRUE(sequence.Reserve(128).ok());
      EXPECT_TRUE(sequence.values_finite(1, 1));
    }
  }
}

TEST(KvSequence, NonFiniteKeysAreNotRecorded) {
  const KvLayout layout{1, 2, 2, DType::kF32};
  KvBlockPool pool(kUnlimited);
  Vectors keys(DType::kF32, 1, 1, 2, 1);
  const Vectors values(DType::kF32, 1, 1, 2, 2);
  keys.Set(0, 0, 0, kNaN);
  KvSequence sequence(layout, &pool);
  ASSERT_TRUE(sequence.Reserve(1).ok());
  sequence.Extend(1, nullptr);
  sequence.WriteTokens(0, keys.view(), values.view(), 0, 1);
  EXPECT_TRUE(sequence.values_finite(0, 0));
}

TEST(KvSequence, ValueThatOverflowsTheCacheTypeIsNotFinite) {
  const KvLayout layout{1, 1, 1, DType::kF16};
  KvBlockPool pool(kUnlimited);
  const Vectors keys(DType::kF32, 2, 1, 1, 1);
  Vectors values(DType::kF32, 2, 1, 1, 2);
  KvSequence sequence(layout, &pool);
  ASSERT_TRUE(sequence.Reserve(2).ok());
  sequence.Extend(2, nullptr);
  values.Set(0, 0, 0, 65519.0f);  // the largest that rounds to 65504
  sequence.WriteTokens(0, keys.Slice(0, 1), values.Slice(0, 1), 0, 1);
  EXPECT_TRUE(sequence.values_finite(0, 0));
  values.Set(1, 0, 0, 65520.0f);
  sequence.WriteTokens(1, keys.Slice(1, 1), values.Slice(1, 1), 0, 1);
  EXPECT_FALSE(sequence.values_finite(0, 0));
}

TEST(KvSequence, PositionsAreKeptOnlyWhereTheyDifferFromIndices) {
  const KvLayout layout{1, 1, 1, DType::kF32};
  KvBlockPool pool(kUnlimited);
  KvSequence sequence(layout, &pool);
  ASSERT_TRUE(sequence.Reserve(8).ok());
  sequence.Extend(2, nullptr);
  const int64_t own[] = {2, 3};
  sequence.Extend(2, own);
  EXPECT_TRUE(sequence.positions().empty());
  const int64_t tree[] = {4, 4, 5};
  sequence.Extend(3, tree);
  EXPECT_EQ(std::vector<int64_t>(sequence.positions().begin(), sequence.positions().end()),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 4, 5}));
  sequence.Extend(1, nullptr);
  EXPECT_EQ(sequence.positions().back(), 7);
  sequence.Truncate(6);
  EXPECT_EQ(sequence.positions().size(), 6u);
  sequence.Truncate(5);  // all that is left lies at its own index
  EXPECT_TRUE(sequence.positions().empty());
}

// A vector and how an I8 cache should hold it.
struct ScaledVector {
  ScaledVector(const Vectors& vectors, int64_t token, int64_t head, int64_t size) {
    float largest = 0.0f;
    for (int64_t i = 0; i < size; ++i) {
      largest = std::max(largest, std::fabs(vectors.At(token, head, i)));
    }
    scale = largest / 127.0f;
    for (int64_t i = 0; i < size; ++i) {
      const float steps = scale > 0.0f ? vectors.At(token, head, i) / scale : 0.0f;
      bytes.push_back(static_cast<int8_t>(std::nearbyint(steps)));
    }
  }
  float scale;
  std::vector<int8_t> bytes;
};

float ScaleAt(const void* vectors, int64_t bytes, int64_t slot) {
  float scale;
  std::memcpy(&scale, static_cast<const uint8_t*>(vectors) + bytes + slot * 4, sizeof scale);
  return scale;
}

TEST(KvSequence, I8TokensHaveAScaleForEachHead) {
  for (const DType source : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [heads, key_size, value_size] :
         {Sizes{1, 1, 1}, Sizes{2, 17, 33}, Sizes{3, 128, 16}, Sizes{1, 129, 300}}) {
      const KvLayout layout{heads, key_size, value_size, DType::kI8};
      EXPECT_EQ(layout.key_bytes(), 64 * (key_size + 4));
      EXPECT_EQ(layout.value_bytes(), 64 * (layout.padded_value_size() + 4));
      KvBlockPool pool(kUnlimited);
      DirtyBlocks(pool, layout, 3, 0xff);
      const Vectors keys(source, 150, heads, key_size, 1);
      Vectors values(source, 150, heads, value_size, 2);
      for (int64_t i = 0; i < value_size; ++i) values.Set(3, 0, i, 0.0f);  // its scale is 0
      KvSequence sequence(layout, &pool);
      ASSERT_TRUE(sequence.Reserve(150).ok());
      for (int64_t begin = 0; begin < 150; begin += 30) {  // strips and blocks in pieces
        sequence.Extend(30, nullptr);
        sequence.WriteTokens(begin, keys.Slice(begin, 30), values.Slice(begin, 30), 0, heads);
      }
      for (int64_t t = 0; t < 150; ++t) {
        const int64_t slot = t % 64;
        for (int64_t h = 0; h < heads; ++h) {
          const ScaledVector key(keys, t, h, key_size), value(values, t, h, value_size);
          const auto* key_block = static_cast<const int8_t*>(sequence.keys(t / 64, h));
          const auto* value_block = static_cast<const int8_t*>(sequence.values(t / 64, h));
          ASSERT_EQ(ScaleAt(key_block, 64 * key_size, slot), key.scale);
          ASSERT_EQ(ScaleAt(value_block, 64 * layout.padded_value_size(), slot), value.scale);
          std::vector<float> read_key(key.bytes.size()), read_value(value.bytes.size());
          sequence.ReadToken(t, h, read_key.data(), read_value.data());
          for (size_t i = 0; i < key.bytes.size(); ++i) {
            const size_t place = static_cast<size_t>(slot / 16 * key_size * 16 + slot % 16);
            ASSERT_EQ(key_block[place + i * 16], key.bytes[i]);
            ASSERT_EQ(read_key[i], static_cast<float>(key.bytes[i]) * key.scale);
          }
          for (size_t i = 0; i < static_cast<size_t>(layout.padded_value_size()); ++i) {
            const size_t place = i / 16 * 64 * 16 + static_cast<size_t>(slot) * 16 + i % 16;
            const bool padding = i >= value.bytes.size();
            ASSERT_EQ(value_block[place], padding ? 0 : value.bytes[i]);
            if (!padding) {
              ASSERT_EQ(read_value[i], static_cast<float>(value.bytes[i]) * value.scale);
            }
          }
        }
      }
      EXPECT_TRUE(sequence.values_finite(0, 0));
    }
  }
}

TEST(KvSequence, I8TokenWithANonFiniteElementIsNaN) {
  const KvLayout layout{2, 5, 140, DType::kI8};
  const Vectors keys(DType::kF32, 70, 2, 5, 1);
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    KvBlockPool pool(kUnlimited);
    Vectors values(DType::kF32, 70, 2, 140, 2);
    values.Set(65, 1, 139, bad);
    KvSequence sequence(layout, &pool);
    ASSERT_TRUE(sequence.Reserve(70).ok());
    sequence.Extend(70, nullptr);
    sequence.WriteTokens(0, keys.view(), values.view(), 0, 2);
    EXPECT_FALSE(sequence.values_finite(1, 1));
    EXPECT_TRUE(sequence.values_finite(1, 0));
    EXPECT_TRUE(sequence.values_finite(0, 1));
    float value[140];
    sequence.ReadToken(65, 1, nullptr, value);
    for (const float element : value) EXPECT_TRUE(std::isnan(element));
    sequence.ReadToken(64, 1, nullptr, value);
    for (const float element : value) EXPECT_TRUE(std::isfinite(element));
  }
}

TEST(KvSequence, I8HoldsTheLargestAndTheSmallestNumbers) {
  const KvLayout layout{1, 2, 2, DType::kI8};
  for (const float number : {std::numeric_limits<float>::max(), 190 * 0x1p-149f, 7 * 0x1p-149f,
                             0x1p-149f, 127 * 0x1p-126f, std::numeric_limits<float>::min()}) {
    KvBlockPool pool(kUnlimited);
    Vectors vectors(DType::kF32, 1, 1, 2, 1);
    vectors.Set(0, 0, 0, number);
    vectors.Set(0, 0, 1, -number);
    KvSequence sequence(layout, &pool);
    ASSERT_TRUE(sequence.Reserve(1).ok());
    sequence.Extend(1, nullptr);
    sequence.WriteTokens(0, vectors.view(), vectors.view(), 0, 1);
    EXPECT_TRUE(sequence.values_finite(0, 0));
    float key[2], value[2];
    sequence.ReadToken(0, 0, key, value);
    const float bound = number / 254.0f + 0x1p-149f;
    for (const float* vector : {key, value}) {
      EXPECT_NEAR(vector[0], number, bound);
      EXPECT_NEAR(vector[1], -number, bound);
    }
  }
}

TEST(KvSequence, ThreadsMayWriteDifferentHeads) {
  const KvLayout layout{4, 33, 31, DType::kBF16};
  KvBlockPool pool(kUnlimited);
  const Vectors keys(DType::kF32, 200, 4, 33, 1);
  Vectors values(DType::kF32, 200, 4, 31, 2);
  values.Set(0, 2, 0, kInfinity);
  KvSequence sequence(layout, &pool);
  ASSERT_TRUE(sequence.Reserve(200).ok());
  sequence.Extend(200, nullptr);
  std::vector<std::thread> threads;
  for (int64_t h = 0; h < 4; ++h) {
    threads.emplace_back([&, h] { sequence.WriteTokens(0, keys.view(), values.view(), h, h + 1); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t t = 0; t < 200; ++t)
    ASSERT_NO_FATAL_FAILURE(ExpectToken(sequence, t, keys, values, t));
  EXPECT_FALSE(sequence.values_finite(0, 2));
  EXPECT_TRUE(sequence.values_finite(0, 1));
}

}  // namespace
}  // namespace attnserve
