// RowVisibility against the definitions of the masks, place by place.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/attention/dropout.h"
#include "lib/attention/row_visibility.h"
#include "lib/base/element_type.h"
#include "lib/base/tensor.h"
#include "lib/cache/kv_block_pool.h"
#include "lib/cache/kv_sequence.h"

namespace attnserve {
namespace {

constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A core-attention layer and a pass over a cache of some keys.
class MaskedPass {
 public:
  MaskedPass(int64_t heads, int64_t keys, const std::vector<int64_t>& positions = {})
      : cache_({1, 1, 1, DType::kF32}, &pool_) {
    spec_.kind = LayerKind::kCoreAttention;
    spec_.head_count = heads;
    spec_.kv_head_count = 1;
    spec_.key_head_size = 1;
    spec_.value_head_size = 1;
    EXPECT_TRUE(cache_.Reserve(keys).ok());
    cache_.Extend(keys, positions.empty() ? nullptr : positions.data());
    pass_.cache = &cache_;
  }

  LayerSpec& spec() { return spec_; }
  AttentionOptions& options() { return spec_.attention; }
  LayerPass& pass() { return pass_; }
  SequenceMasks& masks() { return pass_.masks; }
  int64_t keys() const { return cache_.length(); }

  // Bytes of a mask, kept alive and misaligned.
  const uint8_t* Keep(std::vector<uint8_t> bytes) {
    bytes.insert(bytes.begin(), 0xff);
    kept_.push_back(std::move(bytes));
    return kept_.back().data() + 1;
  }

  // A mask [heads, queries, keys] with sizes of 1 broadcast.
  void SetMask(DType dtype, const std::vector<float>& values, int64_t heads, int64_t queries,
               int64_t keys) {
    ASSERT_EQ(static_cast<int64_t>(values.size()), heads * queries * keys);
    std::vector<uint8_t> bytes(values.size() * ElementSize(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kBool) {
        bytes[i] = values[i] != 0.0f ? 1 : 0;
      } else {
        StoreFromF32(&values[i], 1, dtype, bytes.data() + i * ElementSize(dtype));
      }
    }
    AttentionMaskView& view = masks().attention_mask;
    view.dtype = dtype;
    view.data = Keep(std::move(bytes));
    view.key_stride = keys == 1 ? 0 : 1;
    view.query_stride = queries == 1 ? 0 : keys;
    view.head_stride = heads == 1 ? 0 : queries * keys;
    view.key_count = keys;
  }

  struct Row {
    std::vector<bool> visible;
    std::vector<float> bias;
    simd::AttentionRow row;
  };

  // What the kernels see of one row. Masks are filled a few blocks at a time into poisoned memory.
  Row See(int64_t head, int64_t query) const {
    const RowVisibility visibility(spec_, pass_);
    EXPECT_EQ(visibility.keys(), keys());
    const size_t blocks = static_cast<size_t>(visibility.blocks());
    Row seen;
    visibility.FillRange(head, query, &seen.row);
    std::vector<uint64_t> bits(blocks + 1, kPoison);
    std::vector<float> bias(blocks * 64 + 1, std::nanf(""));
    for (int64_t first = 0; first < visibility.blocks(); first += 2) {
      const BlockRange range = {first, std::min<int64_t>(2, visibility.blocks() - first)};
      if (visibility.needs_bits()) visibility.FillBits(head, query, range, bits.data());
      if (visibility.needs_bias()) visibility.FillBias(head, query, range, bias.data());
      const size_t filled = static_cast<size_t>(range.first + range.count);
      EXPECT_EQ(bits[filled], kPoison);
      EXPECT_TRUE(std::isnan(bias[filled * 64]));
    }
    if (visibility.needs_bits()) seen.row.mask = bits.data();
    for (int64_t key = 0; key < visibility.blocks() * 64; ++key) {
      const bool in_range = key >= seen.row.begin && key < seen.row.end;
      bool sees = (in_range || key < seen.row.sinks) && key < seen.row.key_end;
      if (seen.row.mask != nullptr) {
        sees = sees && ((bits[static_cast<size_t>(key / 64)] >> (key % 64)) & 1) != 0;
      }
      if (key >= keys()) {
        EXPECT_FALSE(sees) << "key " << key << " does not exist";
        EXPECT_TRUE(!visibility.needs_bias() || bias[static_cast<size_t>(key)] == 0.0f);
        continue;
      }
      seen.visible.push_back(sees);
      seen.bias.push_back(visibility.needs_bias() ? bias[static_cast<size_t>(key)] : 0.0f);
    }
    ExpectRangeIsNoNarrower(seen, visibility.blocks());
    seen.row.mask = nullptr;
    return seen;
  }

 private:
  static constexpr uint64_t kPoison = 0x0123456789abcdefu;

  static void ExpectRangeIsNoNarrower(const Row& seen, int64_t blocks) {
    for (int64_t first = 0; first < blocks; ++first) {
      for (int64_t count = 1; first + count <= blocks; ++count) {
        EXPECT_TRUE(!simd::RowSeesBlocks(seen.row, first, count) ||
                    RangeReachesBlocks(seen.row, {first, count}));
      }
    }
  }

  LayerSpec spec_;
  LayerPass pass_;
  KvBlockPool pool_{int64_t{1} << 20};
  KvSequence cache_;
  std::vector<std::vector<uint8_t>> kept_;
};

// Whether a place is visible, by definition.
using Definition = std::function<bool(int64_t head, int64_t query, int64_t key)>;

void ExpectVisible(const MaskedPass& pass, int64_t heads, int64_t queries,
                   const Definition& visible) {
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t query = 0; query < queries; ++query) {
      const MaskedPass::Row row = pass.See(head, query);
      for (int64_t key = 0; key < pass.keys(); ++key) {
        ASSERT_EQ(row.visible[static_cast<size_t>(key)], visible(head, query, key))
            << "head " << head << ", query " << query << ", key " << key << " of " << pass.keys();
      }
    }
  }
}

const int64_t kKeyCounts[] = {0, 1, 2, 63, 64, 65, 127, 128, 130, 200};

TEST(RowVisibility, NoMaskSeesEveryKeyAndNeedsNoMemory) {
  for (const int64_t keys : kKeyCounts) {
    MaskedPass pass(1, keys);
    const RowVisibility visibility(pass.spec(), pass.pass());
    EXPECT_FALSE(visibility.needs_bits());
    EXPECT_FALSE(visibility.needs_bias());
    EXPECT_FALSE(visibility.differs_by_head());
    EXPECT_FALSE(visibility.differs_by_query());
    ExpectVisible(pass, 1, 2, [](int64_t, int64_t, int64_t) { return true; });
  }
}

TEST(RowVisibility, CausalByIndexWhateverTheOffset) {
  for (const int64_t keys : kKeyCounts) {
    for (const int64_t offset :
         {int64_t{-3}, int64_t{0}, int64_t{1}, int64_t{62}, keys, keys + 5}) {
      MaskedPass pass(1, keys);
      pass.options().causal = true;
      pass.masks().causal_offset = offset;
      EXPECT_FALSE(RowVisibility(pass.spec(), pass.pass()).needs_bits());
      ExpectVisible(pass, 1, 5,
                    [&](int64_t, int64_t query, int64_t key) { return key <= offset + query; });
    }
  }
}

TEST(RowVisibility, ValidKeysEndTheSequence) {
  for (const int64_t valid : {0, 1, 64, 65, 130, 999}) {
    MaskedPass pass(1, 130);
    pass.masks().valid_keys = valid;
    ExpectVisible(pass, 1, 1, [&](int64_t, int64_t, int64_t key) { return key < valid; });
  }
}

// Window, sinks and causality at plain positions and at others: the same definition.
TEST(RowVisibility, WindowCountsPositionsSinksCountTokens) {
  constexpr int64_t kKeys = 70;
  std::vector<int64_t> tree_positions;  // depths of a tree after 60 plain tokens
  for (int64_t i = 0; i < kKeys; ++i) tree_positions.push_back(i < 60 ? i : 60 + (i - 60) / 3);
  for (const std::vector<int64_t>& positions : {std::vector<int64_t>(), tree_positions}) {
    for (const int64_t left :
         {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{5}, int64_t{64}, kFar}) {
      for (const int64_t right : {int64_t{-1}, int64_t{0}, int64_t{2}, kFar}) {
        for (const int64_t sinks : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{66}, kFar}) {
          for (const bool causal : {false, true}) {
            MaskedPass pass(1, kKeys, positions);
            pass.options().window = {left, right};
            pass.options().sink_token_count = sinks;
            pass.options().causal = causal;
            pass.masks().causal_offset = 60;
            const int64_t query_positions[] = {60, 63, 0, -7, 5};
            pass.pass().query_positions = query_positions;
            ExpectVisible(pass, 1, 5, [&](int64_t, int64_t query, int64_t key) {
              if (causal && key > 60 + query) return false;
              if (key < sinks) return true;
              const int64_t at = positions.empty() ? key : positions[static_cast<size_t>(key)];
              const int64_t distance = at - query_positions[query];
              return (left < 0 || distance >= -left) && (right < 0 || distance <= right);
            });
          }
        }
      }
    }
  }
}

TEST(RowVisibility, ExtremePositionsDoNotOverflow) {
  for (const bool custom : {false, true}) {
    MaskedPass pass(1, 3,
                    custom ? std::vector<int64_t>{0, kFar - 1, kFar} : std::vector<int64_t>());
    pass.options().window = {kFar, kFar};
    const int64_t query_positions[] = {kFar, -kFar, 0};
    pass.pass().query_positions = query_positions;
    ExpectVisible(pass, 1, 3, [&](int64_t, int64_t query, int64_t key) {
      return query != 1 || (!custom && key == 0) || (custom && key == 0);
    });
  }
}

TEST(RowVisibility, LeftPaddingIsNoSinkToken) {
  // Two tokens of padding, then five: with two sinks, the first two real tokens stay visible.
  std::vector<uint8_t> real = {0, 0, 1, 1, 1, 1, 1};
  const std::vector<int64_t> positions = {0, 0, 0, 1, 2, 3, 4};
  MaskedPass pass(1, 7, positions);
  pass.options().window = {0, 0};
  pass.options().sink_token_count = 2;
  pass.masks().key_mask = pass.Keep(real);
  const int64_t query_positions[] = {4};
  pass.pass().query_positions = query_positions;
  ExpectVisible(pass, 1, 1,
                [](int64_t, int64_t, int64_t key) { return key == 2 || key == 3 || key == 6; });
}

TEST(RowVisibility, KeyMaskOfEveryLength) {
  for (const int64_t keys : kKeyCounts) {
    MaskedPass pass(1, keys);
    std::vector<uint8_t> bytes;
    for (int64_t key = 0; key < keys; ++key) {
      bytes.push_back(key % 3 == 1 ? 0 : static_cast<uint8_t>(1 << (key % 8)));
    }
    pass.masks().key_mask = pass.Keep(bytes);
    EXPECT_FALSE(RowVisibility(pass.spec(), pass.pass()).differs_by_query());
    ExpectVisible(pass, 1, 1, [](int64_t, int64_t, int64_t key) { return key % 3 != 1; });
  }
}

// Every byte that is not 0 counts as set, in every lane.
TEST(RowVisibility, EveryByteValueInEveryLane) {
  for (int64_t lane = 0; lane < 8; ++lane) {
    for (int value = 0; value < 256; ++value) {
      MaskedPass pass(1, 8);
      std::vector<uint8_t> bytes(8, 0);
      bytes[static_cast<size_t>(lane)] = static_cast<uint8_t>(value);
      pass.masks().key_mask = pass.Keep(bytes);
      ExpectVisible(pass, 1, 1,
                    [&](int64_t, int64_t, int64_t key) { return key == lane && value != 0; });
    }
  }
}

TEST(RowVisibility, TreeMasksNewTokensOnly) {
  for (const int64_t cached : {0, 1, 62, 64, 100}) {
    for (const int64_t fresh : {1, 3, 66}) {
      MaskedPass pass(1, cached + fresh);
      pass.pass().past_tokens = cached;
      std::vector<uint8_t> tree;
      for (int64_t i = 0; i < fresh * fresh; ++i) tree.push_back(i * 7 % 5 < 2 ? 1 : 0);
      pass.masks().tree_mask = pass.Keep(tree);
      ExpectVisible(pass, 1, fresh, [&](int64_t, int64_t query, int64_t key) {
        return key < cached || tree[static_cast<size_t>(query * fresh + key - cached)] != 0;
      });
    }
  }
}

// Bool and float masks of every type, with every axis whole or broadcast, and short of keys.
TEST(RowVisibility, AttentionMaskOfEveryForm) {
  constexpr int64_t kHeads = 2, kQueries = 3;
  for (const DType dtype : {DType::kBool, DType::kF32, DType::kF16, DType::kBF16}) {
    const float lowest = dtype == DType::kBool ? 0.0f : LowestFinite(dtype);
    const float choices[] = {0.0f, 1.5f, -kInfinity, -2.0f, lowest, -0.25f, 7.0f};
    for (const int64_t keys : {1, 64, 70}) {
      for (const int64_t mask_heads : {int64_t{1}, kHeads}) {
        for (const int64_t mask_queries : {int64_t{1}, kQueries}) {
          for (const int64_t mask_keys : {int64_t{1}, keys, std::max<int64_t>(2, keys - 5)}) {
            if (mask_keys > keys) continue;
            std::vector<float> values;
            for (int64_t i = 0; i < mask_heads * mask_queries * mask_keys; ++i) {
              const float value = choices[i * 5 % 7];
              values.push_back(dtype == DType::kBool ? (value > 0.0f ? 1.0f : 0.0f) : value);
            }
            MaskedPass pass(kHeads, keys);
            pass.SetMask(dtype, values, mask_heads, mask_queries, mask_keys);
            const auto value_at = [&](int64_t head, int64_t query, int64_t key) {
              const int64_t h = mask_heads == 1 ? 0 : head, q = mask_queries == 1 ? 0 : query;
              const int64_t k = mask_keys == 1 ? 0 : key;
              return values[static_cast<size_t>((h * mask_queries + q) * mask_keys + k)];
            };
            const auto visible = [&](int64_t head, int64_t query, int64_t key) {
              if (mask_keys != 1 && key >= mask_keys) return false;
              const float value = value_at(head, query, key);
              return dtype == DType::kBool ? value != 0.0f : value > lowest;
            };
            ExpectVisible(pass, kHeads, kQueries, visible);
            const RowVisibility visibility(pass.spec(), pass.pass());
            EXPECT_EQ(visibility.needs_bias(), dtype != DType::kBool);
            EXPECT_EQ(visibility.differs_by_head(), mask_heads > 1);
            EXPECT_EQ(visibility.differs_by_query(), mask_queries > 1);
            if (dtype == DType::kBool) continue;
            const MaskedPass::Row row = pass.See(1, 2);
            for (int64_t key = 0; key < keys; ++key) {
              const float expected = visible(1, 2, key) ? value_at(1, 2, key) : 0.0f;
              EXPECT_EQ(row.bias[static_cast<size_t>(key)], expected);
            }
          }
        }
      }
    }
  }
}

TEST(RowVisibility, MaskWithStridedKeys) {
  for (const DType dtype : {DType::kBool, DType::kF16}) {
    MaskedPass pass(1, 5);
    pass.SetMask(dtype, {1, 9, 0, 9, 1, 9, 0, 9, 1, 9}, 1, 1, 10);
    pass.masks().attention_mask.key_stride = 2;
    pass.masks().attention_mask.key_count = 4;
    const bool additive = dtype != DType::kBool;
    ExpectVisible(pass, 1, 1, [&](int64_t, int64_t, int64_t key) {
      return key < 4 && (additive || key % 2 == 0);
    });
    if (!additive) continue;
    EXPECT_EQ(pass.See(0, 0).bias, std::vector<float>({1, 0, 1, 0, 0}));
  }
}

TEST(RowVisibility, EveryMaskMustAllow) {
  constexpr int64_t kKeys = 12, kPast = 8, kQueries = 4;
  MaskedPass pass(1, kKeys);
  pass.options().causal = true;
  pass.options().window.left = 6;
  pass.options().sink_token_count = 1;
  pass.pass().past_tokens = kPast;
  pass.pass().query_position_base = kPast;
  pass.masks().causal_offset = kPast;
  pass.masks().valid_keys = 11;
  const std::vector<uint8_t> key_mask = {1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1};
  pass.masks().key_mask = pass.Keep(key_mask);
  const std::vector<uint8_t> tree = {1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1};
  pass.masks().tree_mask = pass.Keep(tree);
  std::vector<float> mask(kQueries * kKeys, 1.0f);
  for (size_t i = 0; i < mask.size(); i += 5) mask[i] = 0.0f;
  pass.SetMask(DType::kBool, mask, 1, kQueries, kKeys);
  ExpectVisible(pass, 1, kQueries, [&](int64_t, int64_t query, int64_t key) {
    const bool in_window = kPast + query - key <= 6 || key < 1;
    const bool in_tree =
        key < kPast || tree[static_cast<size_t>(query * kQueries + key - kPast)] != 0;
    return key <= kPast + query && in_window && key < 11 && key != 4 && in_tree &&
           (query * kKeys + key) % 5 != 0;
  });
}

TEST(RowVisibility, PaddingQueriesSeeNothing) {
  MaskedPass pass(1, 9);
  const uint8_t query_mask[] = {0, 1, 0, 1};
  pass.masks().query_mask = query_mask;
  ExpectVisible(pass, 1, 4, [](int64_t, int64_t query, int64_t) { return query % 2 == 1; });
  pass.masks().query_mask = nullptr;
  pass.masks().valid_queries = 2;
  ExpectVisible(pass, 1, 4, [](int64_t, int64_t query, int64_t) { return query < 2; });
}

TEST(RowVisibility, AlibiSlopesByHead) {
  MaskedPass pass(3, 2);
  pass.options().position = AlibiPosition{{0.5f, 0.25f, -1.0f}};
  pass.pass().query_position_base = 40;
  EXPECT_EQ(pass.See(0, 0).row.alibi_slope, 0.5f);
  EXPECT_EQ(pass.See(2, 3).row.alibi_slope, -1.0f);
  EXPECT_EQ(pass.See(2, 3).row.query_position, 43);
}

TEST(RowVisibility, DroppedWeightsHaveNoKeepBit) {
  MaskedPass pass(2, 200);
  pass.pass().dropout = {0.3f, 99};
  pass.pass().dropout_stream = 4;
  const RowVisibility visibility(pass.spec(), pass.pass());
  ASSERT_TRUE(visibility.drops());
  EXPECT_FALSE(visibility.needs_bits());
  std::vector<uint64_t> keep(4, 0);
  visibility.FillKeep(1, 6, {1, 3}, keep.data());
  EXPECT_EQ(keep[0], 0u);
  for (int64_t key = 64; key < 200; ++key) {
    const bool kept = ((keep[static_cast<size_t>(key / 64)] >> (key % 64)) & 1) != 0;
    EXPECT_EQ(kept, !DropsWeight(pass.pass().dropout, 4, 1, 6, key)) << key;
  }
}

}  // namespace
}  // namespace attnserve
