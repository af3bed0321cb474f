#include "tests/unit/simd/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "gtest/gtest.h"

namespace attnserve::simd {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int64_t StretchCount(const Problem& problem) {
  return (problem.cache.block_count() + kBlocksPerStretch - 1) / kBlocksPerStretch;
}

std::vector<uint64_t> RandomWords(int64_t count, double ones, std::mt19937& random) {
  std::bernoulli_distribution bit(ones);
  std::vector<uint64_t> words(static_cast<size_t>(count));
  for (uint64_t& word : words) {
    for (int i = 0; i < 64; ++i) word |= static_cast<uint64_t>(bit(random)) << i;
  }
  return words;
}

ProblemRow RandomRow(const ProblemOptions& options, int64_t index, std::mt19937& random) {
  std::normal_distribution<float> normal;
  const int64_t blocks = BlocksForTokens(options.tokens);
  ProblemRow row;
  row.query.resize(static_cast<size_t>(options.d_k));
  for (float& q : row.query) q = normal(random);
  row.row.query_position =
      options.causal ? std::max<int64_t>(0, options.tokens - options.rows + index)
                     : static_cast<int64_t>(random() % static_cast<uint32_t>(options.tokens));
  row.row.end = options.causal ? row.row.query_position + 1 : options.tokens;
  row.row.key_end = options.tokens;
  if (options.window_and_sinks) {
    row.row.begin = row.row.query_position - static_cast<int64_t>(random() % 200);
    row.row.sinks = static_cast<int64_t>(random() % 5);
    row.row.key_end -= static_cast<int64_t>(random() % 3);
  }
  if (options.mask) row.mask = RandomWords(blocks, 0.6, random);
  if (options.keep) row.keep = RandomWords(blocks, 0.75, random);
  if (options.alibi) row.row.alibi_slope = 0.01f * static_cast<float>(random() % 50 + 1);
  if (options.bias) {
    row.bias.assign(static_cast<size_t>(blocks * kTokensPerBlock), kNan);
    for (int64_t j = 0; j < options.tokens; ++j) {
      row.bias[static_cast<size_t>(j)] = normal(random);
    }
  }
  return row;
}

bool Bit(const std::vector<uint64_t>& words, int64_t key) {
  return words.empty() || ((words[static_cast<size_t>(key / 64)] >> (key % 64)) & 1) != 0;
}

}  // namespace

PoisonedCache::PoisonedCache(DType dtype, int64_t d_k, int64_t d_v, int64_t tokens)
    : dtype_(dtype), d_k_(d_k), d_v_(d_v), tokens_(tokens) {
  const KvLayout layout{1, d_k, d_v, dtype};
  const int64_t size = static_cast<int64_t>(ElementSize(dtype));
  for (int64_t b = 0; b < BlocksForTokens(tokens); ++b) {
    AlignedBuffer<uint8_t>& block = blocks_.emplace_back(static_cast<size_t>(layout.block_bytes()));
    std::fill_n(block.data(), layout.block_bytes(), uint8_t{0xff});  // NaN, the scales of I8 too
    for (int64_t i = 0; dtype != DType::kI8 && i < layout.block_bytes() / size; ++i) {
      Store(block.data(), i, kNan);
    }
  }
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t i = d_v; i < layout.padded_value_size(); ++i) {
      std::memset(Values(token) + ValuePlace(token, i) * size, 0, static_cast<size_t>(size));
    }
  }
  given_keys_.assign(static_cast<size_t>(tokens * d_k), 0.0f);
  given_values_.assign(static_cast<size_t>(tokens * d_v), 0.0f);
  keys_.assign(given_keys_.size(), 0.0);
  values_.assign(given_values_.size(), 0.0);
}

uint8_t* PoisonedCache::Keys(int64_t token) const {
  return const_cast<uint8_t*>(blocks_[static_cast<size_t>(token / 64)].data());
}

uint8_t* PoisonedCache::Values(int64_t token) const {
  return Keys(token) + KvLayout{1, d_k_, d_v_, dtype_}.key_bytes();
}

int64_t PoisonedCache::KeyPlace(int64_t token, int64_t i) const {
  return (token % 64 / 16 * d_k_ + i) * 16 + token % 16;
}

int64_t PoisonedCache::ValuePlace(int64_t token, int64_t i) {
  return (i / 16 * 64 + token % 64) * 16 + i % 16;
}

float PoisonedCache::Store(void* block, int64_t element, float value) {
  uint8_t* place =
      static_cast<uint8_t*>(block) + element * static_cast<int64_t>(ElementSize(dtype_));
  if (dtype_ == DType::kF32) {
    std::memcpy(place, &value, sizeof value);
    return value;
  }
  const uint16_t bits = dtype_ == DType::kF16 ? F32ToF16(value) : F32ToBf16(value);
  std::memcpy(place, &bits, sizeof bits);
  return dtype_ == DType::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
}

template <typename Place>
void PoisonedCache::StoreVector(uint8_t* vectors, int64_t scales_at, int64_t token, int64_t size,
                                const float* given, const Place& place, double* rounded) {
  float largest = 0.0f;
  for (int64_t i = 0; i < size; ++i) {
    const float magnitude = std::isfinite(given[i]) ? std::fabs(given[i]) : kNan;
    largest = magnitude > largest || std::isnan(magnitude) ? magnitude : largest;
    if (std::isnan(largest)) break;
  }
  const float scale = largest / 127.0f;
  std::memcpy(vectors + scales_at + token % 64 * 4, &scale, sizeof scale);
  for (int64_t i = 0; i < size; ++i) {
    const float steps = scale > 0.0f ? std::nearbyint(given[i] / scale) : 0.0f;
    const int8_t byte = static_cast<int8_t>(std::clamp(steps, -127.0f, 127.0f));
    std::memcpy(vectors + place(i), &byte, 1);
    rounded[i] = static_cast<double>(byte) * static_cast<double>(scale);
  }
}

void PoisonedCache::SetKey(int64_t token, int64_t i, float value) {
  given_keys_[Index(token, i, d_k_)] = value;
  if (dtype_ == DType::kI8) {
    const size_t first = Index(token, 0, d_k_);
    StoreVector(
        Keys(token), 64 * d_k_, token, d_k_, &given_keys_[first],
        [&](int64_t e) { return KeyPlace(token, e); }, &keys_[first]);
  } else {
    keys_[Index(token, i, d_k_)] = Store(Keys(token), KeyPlace(token, i), value);
  }
}

void PoisonedCache::SetValue(int64_t token, int64_t i, float value) {
  given_values_[Index(token, i, d_v_)] = value;
  if (dtype_ == DType::kI8) {
    const size_t first = Index(token, 0, d_v_);
    const int64_t padded = KvLayout{1, d_k_, d_v_, dtype_}.padded_value_size();
    StoreVector(
        Values(token), 64 * padded, token, d_v_, &given_values_[first],
        [&](int64_t e) { return ValuePlace(token, e); }, &values_[first]);
  } else {
    values_[Index(token, i, d_v_)] = Store(Values(token), ValuePlace(token, i), value);
  }
}

float PoisonedCache::key_scale(int64_t token) const {
  if (dtype_ != DType::kI8) return 1.0f;
  float scale;
  std::memcpy(&scale, Keys(token) + 64 * d_k_ + token % 64 * 4, sizeof scale);
  return scale;
}

KvHeadBlock PoisonedCache::block(int64_t index) const {
  const uint8_t* keys = blocks_[static_cast<size_t>(index)].data();
  KvHeadBlock block{keys, keys + KvLayout{1, d_k_, d_v_, dtype_}.key_bytes(), !claim_nonfinite};
  for (int64_t token = index * 64; token < std::min(tokens_, index * 64 + 64); ++token) {
    for (int64_t i = 0; i < d_v_; ++i) block.values_finite &= std::isfinite(value(token, i));
  }
  return block;
}

Problem::Problem(const ProblemOptions& problem_options, uint32_t seed)
    : options(problem_options), cache(options.dtype, options.d_k, options.d_v, options.tokens) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t token = 0; token < options.tokens; ++token) {
    for (int64_t i = 0; i < options.d_k; ++i) cache.SetKey(token, i, normal(random));
    for (int64_t i = 0; i < options.d_v; ++i) cache.SetValue(token, i, normal(random));
  }
  for (int64_t r = 0; r < options.rows; ++r) rows.push_back(RandomRow(options, r, random));
  if (!options.key_positions) return;
  for (int64_t j = 0; j < cache.block_count() * 64; ++j) {
    key_positions.push_back(static_cast<int64_t>(random() % 1000));
  }
}

AttentionParams Problem::params() const {
  AttentionParams params;
  params.key_head_size = options.d_k;
  params.value_head_size = options.d_v;
  params.cache_dtype = options.dtype;
  params.scale = options.scale;
  params.softcap = options.softcap;
  if (!key_positions.empty()) params.key_positions = key_positions.data();
  return params;
}

std::vector<AttentionRow> Problem::Rows() const {
  std::vector<AttentionRow> result;
  for (const ProblemRow& source : rows) {
    AttentionRow& row = result.emplace_back(source.row);
    row.query = source.query.data();
    if (!source.mask.empty()) row.mask = source.mask.data();
    if (!source.bias.empty()) row.bias = source.bias.data();
    if (!source.keep.empty()) row.keep = source.keep.data();
  }
  return result;
}

void AttendRows(const AttentionParams& params, const std::vector<AttentionRow>& rows,
                int64_t first_block, const std::vector<KvHeadBlock>& blocks, float* partials) {
  const auto poison = [](size_t count, float* floats) { std::fill_n(floats, count, kNan); };
  const size_t query_floats = rows.size() * static_cast<size_t>(params.key_head_size);
  AlignedBuffer<float> queries(query_floats);
  AlignedBuffer<float> scratch(AttendScratchFloats());
  poison(query_floats, queries.data());
  poison(AttendScratchFloats(), scratch.data());
  poison(rows.size() * static_cast<size_t>(PartialFloats(params.value_head_size)), partials);
  PackQueries(params, rows, queries.data());
  AttendStretch(params, rows, queries.data(), first_block, blocks, partials, scratch.data());
}

std::vector<RowResult> Compute(const Problem& problem, const std::vector<size_t>& row_indices,
                               std::vector<int64_t> stretch_order, bool skip_unseen) {
  const AttentionParams params = problem.params();
  const std::vector<AttentionRow> all_rows = problem.Rows();
  std::vector<AttentionRow> rows;
  for (const size_t index : row_indices) rows.push_back(all_rows[index]);
  if (stretch_order.empty()) {
    stretch_order.resize(static_cast<size_t>(StretchCount(problem)));
    std::iota(stretch_order.begin(), stretch_order.end(), 0);
  }

  const size_t floats = static_cast<size_t>(PartialFloats(params.value_head_size));
  std::vector<AlignedBuffer<float>> partials(stretch_order.size());
  for (const int64_t stretch : stretch_order) {
    AlignedBuffer<float>& partial = partials[static_cast<size_t>(stretch)];
    partial.Reserve(rows.size() * floats);
    const int64_t first = stretch * kBlocksPerStretch;
    std::vector<KvHeadBlock> blocks;
    for (int64_t b = first; b < std::min(first + kBlocksPerStretch, problem.cache.block_count());
         ++b) {
      blocks.push_back(problem.cache.block(b));
    }
    AttendRows(params, rows, first, blocks, partial.data());
  }

  std::vector<RowResult> results;
  for (size_t r = 0; r < rows.size(); ++r) {
    float* total = partials[0].data() + r * floats;
    for (size_t s = 1; s < partials.size(); ++s) {
      const int64_t first = static_cast<int64_t>(s) * kBlocksPerStretch;
      if (skip_unseen && !RowSeesBlocks(rows[r], first, kBlocksPerStretch)) continue;
      MergePartial(params.value_head_size, partials[s].data() + r * floats, total);
    }
    RowResult& result = results.emplace_back();
    result.output.assign(static_cast<size_t>(params.value_head_size), kNan);
    result.lse = FinishRow(params.value_head_size, total, problem.options.sink_logit,
                           problem.value_factor(), result.output.data());
  }
  return results;
}

std::vector<RowResult> ComputeAll(const Problem& problem) {
  std::vector<size_t> indices(problem.rows.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  return Compute(problem, indices);
}

Problem Truncated(const Problem& problem, int64_t tokens) {
  ProblemOptions options = problem.options;
  options.tokens = tokens;
  Problem truncated(options, 0);
  truncated.rows = problem.rows;
  truncated.key_positions = problem.key_positions;
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t i = 0; i < options.d_k; ++i) {
      truncated.cache.SetKey(token, i, problem.cache.given_key(token, i));
    }
    for (int64_t i = 0; i < options.d_v; ++i) {
      truncated.cache.SetValue(token, i, problem.cache.given_value(token, i));
    }
  }
  return truncated;
}

bool SameBits(const RowResult& a, const RowResult& b) {
  return a.output.size() == b.output.size() &&
         std::memcmp(a.output.data(), b.output.data(), a.output.size() * sizeof(float)) == 0 &&
         std::memcmp(&a.lse, &b.lse, sizeof(float)) == 0;
}

bool Sees(const ProblemRow& source, int64_t key) {
  const AttentionRow& row = source.row;
  const bool in_range = (key >= row.begin && key < row.end) || key < row.sinks;
  return in_range && key < row.key_end && Bit(source.mask, key);
}

}  // namespace attnserve::simd
