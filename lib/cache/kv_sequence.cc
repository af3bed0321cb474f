#include "lib/cache/kv_sequence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>

#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/simd/vector_ops.h"

namespace attnserve {
namespace {

constexpr int64_t kPanelElements = kTokensPerBlock * kStripWidth;

// Index of element `i` of token `slot` of a block among its keys, of `head_size` elements.
constexpr int64_t KeyIndex(int64_t slot, int64_t head_size, int64_t i) {
  return (slot / kStripWidth * head_size + i) * kStripWidth + slot % kStripWidth;
}

// The same among its values.
constexpr int64_t ValueIndex(int64_t slot, int64_t i) {
  return i / kStripWidth * kPanelElements + slot * kStripWidth + i % kStripWidth;
}

// Up to a strip of tokens of one head, on their way into a block.
struct Tokens {
  const HeadsView& view;
  int64_t first;  // in `view`
  int64_t count;  // at most kStripWidth
  int64_t head;
  int64_t slot;  // of the first, in the block; all lie in one strip
};

// Elements of a vector that are converted together, a multiple of kStripWidth: those of a strip of
// tokens, 8 KiB, stay in L1.
constexpr int64_t kPieceElements = 128;

// Where the vector of token `t` begins, from its element `begin` on.
const uint8_t* Source(const Tokens& tokens, int64_t t, int64_t begin) {
  const HeadsView& view = tokens.view;
  const int64_t offset =
      (tokens.first + t) * view.token_stride + tokens.head * view.head_stride + begin;
  return static_cast<const uint8_t*>(view.data) +
         offset * static_cast<int64_t>(ElementSize(view.dtype));
}

// The scale of a vector whose largest magnitude is `largest`: what 127 stands for, as near to it as
// can be, but 127 times it is finite, and of subnormal numbers, whose rounding is coarse, not below
// `largest`.
float ScaleFor(float largest) {
  const float most = std::nextafter(std::numeric_limits<float>::max() / 127.0f, 0.0f);
  const float scale = std::min(largest / 127.0f, most);
  const bool coarse = scale < std::numeric_limits<float>::min();
  return coarse && scale * 127.0f < largest ? std::nextafter(scale, 1.0f) : scale;
}

// The scale of token `t` in an I8 cache.
float ScaleOf(const Tokens& tokens, int64_t t) {
  float largest = 0.0f;
  for (int64_t begin = 0; begin < tokens.view.size; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, tokens.view.size - begin);
    float wide[kPieceElements];
    LoadAsF32(tokens.view.dtype, Source(tokens, t, begin), count, wide);
    const float magnitude = simd::LargestMagnitude(wide, count);
    if (std::isnan(magnitude)) return magnitude;
    largest = std::max(largest, magnitude);
  }
  return ScaleFor(largest);
}

// Part of the vectors of some tokens in the cache's type T: float, uint16_t for F16 and BF16, or
// int8_t.
template <typename T>
class Piece {
 public:
  void Load(const Tokens& tokens, int64_t begin, int64_t count, DType type, const float* scales) {
    for (int64_t t = 0; t < tokens.count; ++t) {
      const uint8_t* const source = Source(tokens, t, begin);
      if constexpr (std::is_same_v<T, int8_t>) {
        float wide[kPieceElements];
        LoadAsF32(tokens.view.dtype, source, count, wide);
        simd::Quantize(wide, count, scales[t], rows_[t]);
      } else {
        Convert(tokens.view.dtype, source, count, type, rows_[t]);
      }
    }
  }

  const T* row(int64_t token) const { return rows_[token]; }

 private:
  static void Convert(DType from, const uint8_t* source, int64_t count, DType to, T* target) {
    if (from == to) {
      std::memcpy(target, source, static_cast<size_t>(count) * sizeof(T));
    } else if constexpr (std::is_same_v<T, float>) {
      simd::Widen(from, source, count, target);
    } else {
      float wide[kPieceElements];
      LoadAsF32(from, source, count, wide);
      simd::Narrow(wide, count, to, target);
    }
  }

  T rows_[kStripWidth][kPieceElements];
};

// Whether an element's exponent says infinity or NaN.
bool IsNonFinite(DType, float value) { return !std::isfinite(value); }
bool IsNonFinite(DType type, uint16_t bits) {
  const uint32_t exponent = type == DType::kF16 ? 0x7c00u : 0x7f80u;
  return (bits & exponent) == exponent;
}
bool IsNonFinite(DType, int8_t) { return false; }  // its scale says it

// Writes the scales of some tokens, in an I8 cache, behind vectors of `bytes` bytes in all. Returns
// whether all are finite.
bool WriteScales(const Tokens& tokens, uint8_t* vectors, int64_t bytes, float* scales) {
  bool finite = true;
  for (int64_t t = 0; t < tokens.count; ++t) {
    scales[t] = ScaleOf(tokens, t);
    finite &= std::isfinite(scales[t]);
  }
  std::memcpy(vectors + bytes + tokens.slot * int64_t{sizeof(float)}, scales,
              static_cast<size_t>(tokens.count) * sizeof(float));
  return finite;
}

template <typename T>
void WriteKeys(const Tokens& tokens, DType type, const float* scales, T* keys) {
  Piece<T> piece;
  for (int64_t begin = 0; begin < tokens.view.size; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, tokens.view.size - begin);
    piece.Load(tokens, begin, count, type, scales);
    T* const strip = keys + KeyIndex(tokens.slot, tokens.view.size, begin);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t t = 0; t < tokens.count; ++t) strip[i * kStripWidth + t] = piece.row(t)[i];
    }
  }
}

// Returns whether all that was written is finite.
template <typename T>
bool WriteValues(const Tokens& tokens, DType type, const float* scales, T* values) {
  bool nonfinite = false;
  Piece<T> piece;
  for (int64_t begin = 0; begin < tokens.view.size; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, tokens.view.size - begin);
    piece.Load(tokens, begin, count, type, scales);
    for (int64_t i = 0; i < count; i += kStripWidth) {
      const int64_t width = std::min(kStripWidth, count - i);
      for (int64_t t = 0; t < tokens.count; ++t) {
        const T* const source = piece.row(t) + i;
        T* const target = values + ValueIndex(tokens.slot + t, begin + i);
        for (int64_t c = 0; c < width; ++c) nonfinite |= IsNonFinite(type, source[c]);
        std::copy_n(source, width, target);
        std::fill(target + width, target + kStripWidth, T{0});
      }
    }
  }
  return !nonfinite;
}

template <typename T>
bool WriteStrip(const Tokens& keys, const Tokens& values, const KvLayout& layout,
                uint8_t* head_block) {
  uint8_t* const value_block = head_block + layout.key_bytes();
  float key_scales[kStripWidth], value_scales[kStripWidth];
  bool finite = true;
  if constexpr (std::is_same_v<T, int8_t>) {
    WriteScales(keys, head_block, kTokensPerBlock * layout.key_head_size, key_scales);
    finite = WriteScales(values, value_block, kTokensPerBlock * layout.padded_value_size(),
                         value_scales);
  }
  WriteKeys(keys, layout.dtype, key_scales, reinterpret_cast<T*>(head_block));
  finite &= WriteValues(values, layout.dtype, value_scales, reinterpret_cast<T*>(value_block));
  return finite;
}

using StripWriter = bool (*)(const Tokens&, const Tokens&, const KvLayout&, uint8_t*);

StripWriter StripWriterFor(DType type) {
  if (type == DType::kF32) return &WriteStrip<float>;
  return type == DType::kI8 ? &WriteStrip<int8_t> : &WriteStrip<uint16_t>;
}

// `count` elements, which are one behind the other, of a token that lies in `slot`; `scales` is
// read in an I8 cache only.
void ReadElements(DType type, const uint8_t* source, int64_t count, const uint8_t* scales,
                  int64_t slot, float* target) {
  if (type != DType::kI8) return LoadAsF32(type, source, count, target);
  float scale;
  std::memcpy(&scale, scales + slot * int64_t{sizeof(float)}, sizeof scale);
  for (int64_t i = 0; i < count; ++i) {
    target[i] = static_cast<float>(static_cast<int8_t>(source[i])) * scale;
  }
}

}  // namespace

KvSequence::KvSequence(const KvLayout& layout, KvBlockPool* pool) : layout_(layout), pool_(pool) {}

KvSequence::~KvSequence() { Truncate(0); }

int64_t KvSequence::capacity() const { return block_count() * kTokensPerBlock; }

int64_t KvSequence::bytes() const { return block_count() * layout_.block_bytes(); }

int64_t KvSequence::BytesToReserve(int64_t tokens) const {
  constexpr int64_t kMost = int64_t{1} << 62;  // above any budget
  const int64_t blocks = std::max<int64_t>(0, BlocksForTokens(tokens) - block_count());
  return blocks > kMost / layout_.block_bytes() ? kMost : blocks * layout_.block_bytes();
}

absl::Status KvSequence::Reserve(int64_t tokens) {
  const int64_t needed = BytesToReserve(tokens);
  if (needed == 0) return absl::OkStatus();
  ATTNSERVE_RETURN_IF_ERROR(pool_->Charge(needed, bytes()));
  absl::Status status = ReserveCharged(tokens);
  if (!status.ok()) pool_->Refund(needed);
  return status;
}

absl::Status KvSequence::ReserveCharged(int64_t tokens) {
  const size_t before = blocks_.size();
  const size_t after = static_cast<size_t>(BlocksForTokens(tokens));
  if (after <= before) return absl::OkStatus();
  const int64_t needed = BytesToReserve(tokens);
  try {
    if (after > blocks_.capacity()) blocks_.reserve(std::max(after, 2 * blocks_.capacity()));
    nonfinite_.reserve(blocks_.capacity() * static_cast<size_t>(layout_.kv_heads));
  } catch (const std::bad_alloc&) {
    return OutOfMemory(needed);
  }
  while (blocks_.size() < after) {
    void* const block = pool_->Allocate(layout_.block_bytes());
    if (block == nullptr) {
      for (; blocks_.size() > before; blocks_.pop_back()) {
        pool_->Free(blocks_.back(), layout_.block_bytes());
      }
      return OutOfMemory(needed);
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
  const StripWriter write_strip = StripWriterFor(layout_.dtype);
  for (int64_t head = head_begin; head < head_end; ++head) {
    for (int64_t token = 0; token < keys.tokens;) {
      const int64_t block = (first + token) / kTokensPerBlock;
      const int64_t slot = (first + token) % kTokensPerBlock;
      const int64_t count = std::min(kStripWidth - slot % kStripWidth, keys.tokens - token);
      if (!write_strip({keys, token, count, head, slot}, {values, token, count, head, slot},
                       layout_, HeadBlock(block, head))) {
        nonfinite_[static_cast<size_t>(block * layout_.kv_heads + head)] = 1;
      }
      token += count;
    }
  }
}

void KvSequence::ReadToken(int64_t index, int64_t head, float* key, float* value) const {
  const int64_t slot = index % kTokensPerBlock;
  const int64_t element = static_cast<int64_t>(ElementSize(layout_.dtype));
  const uint8_t* const keys = HeadBlock(index / kTokensPerBlock, head);
  const uint8_t* const values = keys + layout_.key_bytes();
  const uint8_t* const key_scales = keys + kTokensPerBlock * layout_.key_head_size;
  for (int64_t i = 0; key != nullptr && i < layout_.key_head_size; ++i) {
    ReadElements(layout_.dtype, keys + KeyIndex(slot, layout_.key_head_size, i) * element, 1,
                 key_scales, slot, key + i);
  }
  const uint8_t* const value_scales = values + kTokensPerBlock * layout_.padded_value_size();
  for (int64_t i = 0; value != nullptr && i < layout_.value_head_size; i += kStripWidth) {
    ReadElements(layout_.dtype, values + ValueIndex(slot, i) * element,
                 std::min(kStripWidth, layout_.value_head_size - i), value_scales, slot, value + i);
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
