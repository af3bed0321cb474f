#include "lib/cache/kv_sequence.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/base/errors.h"

namespace attnserve {
namespace {

constexpr int64_t kPanelElements = kTokensPerBlock * kStripWidth;

// Elements converted at a time, on the stack; a multiple of kStripWidth.
constexpr int64_t kPieceElements = 256;

bool IsFinite(float value) { return std::isfinite(value); }

// `type` is F16 or BF16.
bool IsFinite(DType type, uint16_t bits) {
  const uint32_t exponent = type == DType::kF16 ? 0x7c00u : 0x7f80u;
  return (bits & exponent) != exponent;
}

// Elements [begin, begin + count) of one vector in the cache's type.
class Piece {
 public:
  void Load(const HeadsView& source, int64_t token, int64_t head, int64_t begin, int64_t count,
            DType type) {
    const int64_t offset = token * source.token_stride + head * source.head_stride + begin;
    const uint8_t* from = static_cast<const uint8_t*>(source.data) +
                          offset * static_cast<int64_t>(ElementSize(source.dtype));
    LoadAsF32(source.dtype, from, count, wide_);
    if (type != DType::kF32) StoreFromF32(wide_, count, type, narrow_);
  }

  bool Finite(DType type, int64_t count) const {
    if (type == DType::kF32) {
      return std::all_of(wide_, wide_ + count, [](float value) { return IsFinite(value); });
    }
    return std::all_of(narrow_, narrow_ + count,
                       [type](uint16_t bits) { return IsFinite(type, bits); });
  }

  const float* Data(const float*) const { return wide_; }
  const uint16_t* Data(const uint16_t*) const { return narrow_; }

 private:
  float wide_[kPieceElements];
  uint16_t narrow_[kPieceElements];
};

// Index of element `i` of token `slot` of a block among its keys, of `head_size` elements.
constexpr int64_t KeyIndex(int64_t slot, int64_t head_size, int64_t i) {
  return (slot / kStripWidth * head_size + i) * kStripWidth + slot % kStripWidth;
}

// The same among its values.
constexpr int64_t ValueIndex(int64_t slot, int64_t i) {
  return i / kStripWidth * kPanelElements + slot * kStripWidth + i % kStripWidth;
}

template <typename T>
void WriteKey(const HeadsView& keys, int64_t token, int64_t head, int64_t slot, DType type,
              T* target) {
  Piece piece;
  for (int64_t begin = 0; begin < keys.size; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, keys.size - begin);
    piece.Load(keys, token, head, begin, count, type);
    const T* const source = piece.Data(target);
    T* const strip = target + KeyIndex(slot, keys.size, begin);
    for (int64_t i = 0; i < count; ++i) strip[i * kStripWidth] = source[i];
  }
}

// Returns whether what was written is finite.
template <typename T>
bool WriteValue(const HeadsView& values, int64_t token, int64_t head, int64_t slot, DType type,
                T* target) {
  bool finite = true;
  Piece piece;
  for (int64_t begin = 0; begin < values.size; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, values.size - begin);
    piece.Load(values, token, head, begin, count, type);
    finite = finite && piece.Finite(type, count);
    const T* const source = piece.Data(target);
    for (int64_t i = 0; i < count; i += kStripWidth) {
      T* const row = target + ValueIndex(slot, begin + i);
      const int64_t width = std::min(kStripWidth, count - i);
      std::copy_n(source + i, width, row);
      std::fill(row + width, row + kStripWidth, T{0});
    }
  }
  return finite;
}

}  // namespace

KvSequence::KvSequence(const KvLayout& layout, KvBlockPool* pool) : layout_(layout), pool_(pool) {}

KvSequence::~KvSequence() { Truncate(0); }

int64_t KvSequence::capacity() const { return block_count() * kTokensPerBlock; }

int64_t KvSequence::bytes() const { return block_count() * layout_.block_bytes(); }

int64_t KvSequence::BytesToReserve(int64_t tokens) const {
  return std::max<int64_t>(0, BlocksForTokens(tokens) - block_count()) * layout_.block_bytes();
}

absl::Status KvSequence::Reserve(int64_t tokens) {
  const size_t before = blocks_.size();
  const size_t after = static_cast<size_t>(BlocksForTokens(tokens));
  if (after <= before) return absl::OkStatus();
  const int64_t bytes = BytesToReserve(tokens);
  if (absl::Status status = pool_->Charge(bytes); !status.ok()) return status;
  if (after > blocks_.capacity()) blocks_.reserve(std::max(after, 2 * blocks_.capacity()));
  while (blocks_.size() < after) {
    void* const block = pool_->Allocate(layout_.block_bytes());
    if (block == nullptr) {
      for (; blocks_.size() > before; blocks_.pop_back()) {
        pool_->Free(blocks_.back(), layout_.block_bytes());
      }
      pool_->Refund(bytes);
      return KvBudgetExceeded(bytes, 0, pool_->usage().budget_bytes);
    }
    blocks_.push_back(block);
  }
  nonfinite_.resize(after * static_cast<size_t>(layout_.kv_heads), 0);
  if (!positions_.empty()) positions_.reserve(blocks_.capacity() * kTokensPerBlock);
  return absl::OkStatus();
}

void KvSequence::Extend(int64_t count, const int64_t* positions) {
  const auto own_index = [this, positions](int64_t i) { return positions[i] == length_ + i; };
  bool plain = positions_.empty();
  for (int64_t i = 0; plain && positions != nullptr && i < count; ++i) plain = own_index(i);
  if (!plain) {
    positions_.reserve(blocks_.capacity() * kTokensPerBlock);
    for (int64_t i = static_cast<int64_t>(positions_.size()); i < length_; ++i) {
      positions_.push_back(i);
    }
    for (int64_t i = 0; i < count; ++i) {
      positions_.push_back(positions != nullptr ? positions[i] : length_ + i);
    }
  }
  length_ += count;
}

void KvSequence::WriteTokens(int64_t first, const HeadsView& keys, const HeadsView& values,
                             int64_t head_begin, int64_t head_end) {
  for (int64_t head = head_begin; head < head_end; ++head) {
    for (int64_t token = 0; token < keys.tokens; ++token) {
      const int64_t block = (first + token) / kTokensPerBlock;
      const int64_t slot = (first + token) % kTokensPerBlock;
      uint8_t* const key_data = HeadBlock(block, head);
      uint8_t* const value_data = key_data + layout_.key_bytes();
      bool finite;
      if (layout_.dtype == DType::kF32) {
        WriteKey(keys, token, head, slot, layout_.dtype, reinterpret_cast<float*>(key_data));
        finite = WriteValue(values, token, head, slot, layout_.dtype,
                            reinterpret_cast<float*>(value_data));
      } else {
        WriteKey(keys, token, head, slot, layout_.dtype, reinterpret_cast<uint16_t*>(key_data));
        finite = WriteValue(values, token, head, slot, layout_.dtype,
                            reinterpret_cast<uint16_t*>(value_data));
      }
      if (!finite) nonfinite_[static_cast<size_t>(block * layout_.kv_heads + head)] = 1;
    }
  }
}

void KvSequence::ReadToken(int64_t index, int64_t head, float* key, float* value) const {
  const int64_t slot = index % kTokensPerBlock;
  const int64_t element = static_cast<int64_t>(ElementSize(layout_.dtype));
  const uint8_t* const keys = HeadBlock(index / kTokensPerBlock, head);
  const uint8_t* const values = keys + layout_.key_bytes();
  for (int64_t i = 0; key != nullptr && i < layout_.key_head_size; ++i) {
    LoadAsF32(layout_.dtype, keys + KeyIndex(slot, layout_.key_head_size, i) * element, 1, key + i);
  }
  for (int64_t i = 0; value != nullptr && i < layout_.value_head_size; i += kStripWidth) {
    LoadAsF32(layout_.dtype, values + ValueIndex(slot, i) * element,
              std::min(kStripWidth, layout_.value_head_size - i), value + i);
  }
}

void KvSequence::Truncate(int64_t length, int64_t keep_capacity) {
  length_ = length;
  const size_t keep = static_cast<size_t>(BlocksForTokens(std::max(length, keep_capacity)));
  int64_t freed = 0;
  for (; blocks_.size() > keep; blocks_.pop_back()) {
    pool_->Free(blocks_.back(), layout_.block_bytes());
    freed += layout_.block_bytes();
  }
  if (freed > 0) pool_->Refund(freed);
  nonfinite_.resize(blocks_.size() * static_cast<size_t>(layout_.kv_heads));
  if (positions_.empty()) return;
  positions_.resize(static_cast<size_t>(length));
  const auto plain = [this] {
    for (size_t i = 0; i < positions_.size(); ++i) {
      if (positions_[i] != static_cast<int64_t>(i)) return false;
    }
    return true;
  };
  if (plain()) positions_.clear();
}

uint8_t* KvSequence::HeadBlock(int64_t block, int64_t head) const {
  return static_cast<uint8_t*>(blocks_[static_cast<size_t>(block)]) + head * layout_.head_bytes();
}

const void* KvSequence::keys(int64_t block, int64_t head) const { return HeadBlock(block, head); }

const void* KvSequence::values(int64_t block, int64_t head) const {
  return HeadBlock(block, head) + layout_.key_bytes();
}

bool KvSequence::values_finite(int64_t block, int64_t head) const {
  return nonfinite_[static_cast<size_t>(block * layout_.kv_heads + head)] == 0;
}

}  // namespace attnserve
