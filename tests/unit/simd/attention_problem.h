// Attention problems for tests: a cache whose unwritten places are poisoned, rows with every kind
// of mask, and a float64 twin of the kernels that shares no code with them.
#ifndef ATTNSERVE_TESTS_UNIT_SIMD_ATTENTION_PROBLEM_H_
#define ATTNSERVE_TESTS_UNIT_SIMD_ATTENTION_PROBLEM_H_

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "lib/base/aligned_buffer.h"
#include "lib/simd/attention.h"

namespace attnserve::simd {

// One key/value head: tokens in blocks as in kv_layout.h. Everything not written is NaN.
class PoisonedCache {
 public:
  PoisonedCache(DType dtype, int64_t d_k, int64_t d_v, int64_t tokens);

  // Writes one element, rounded to the cache's type; in an I8 cache its vector anew.
  void SetKey(int64_t token, int64_t i, float value);
  void SetValue(int64_t token, int64_t i, float value);

  // An element as it was given.
  float given_key(int64_t token, int64_t i) const { return given_keys_[Index(token, i, d_k_)]; }
  float given_value(int64_t token, int64_t i) const { return given_values_[Index(token, i, d_v_)]; }

  // What an element is after rounding.
  double key(int64_t token, int64_t i) const { return keys_[Index(token, i, d_k_)]; }
  double value(int64_t token, int64_t i) const { return values_[Index(token, i, d_v_)]; }

  // What an I8 cache multiplies a key's bytes by; 1 for other types.
  float key_scale(int64_t token) const;

  int64_t tokens() const { return tokens_; }
  int64_t block_count() const { return static_cast<int64_t>(blocks_.size()); }
  KvHeadBlock block(int64_t index) const;

  // Blocks claim to hold non-finite values even if they do not.
  bool claim_nonfinite = false;

 private:
  static size_t Index(int64_t token, int64_t i, int64_t size) {
    return static_cast<size_t>(token * size + i);
  }
  uint8_t* Keys(int64_t token) const;
  uint8_t* Values(int64_t token) const;
  // Element `i` of keys or values of a token; for I8 of their bytes.
  int64_t KeyPlace(int64_t token, int64_t i) const;
  static int64_t ValuePlace(int64_t token, int64_t i);
  float Store(void* block, int64_t element, float value);
  // The vector of a token in an I8 cache, whose elements lie at place(i) and whose scale follows
  // `scales_at` bytes.
  template <typename Place>
  void StoreVector(uint8_t* vectors, int64_t scales_at, int64_t token, int64_t size,
                   const float* given, const Place& place, double* rounded);

  DType dtype_;
  int64_t d_k_;
  int64_t d_v_;
  int64_t tokens_;
  std::vector<AlignedBuffer<uint8_t>> blocks_;
  std::vector<float> given_keys_, given_values_;
  std::vector<double> keys_;
  std::vector<double> values_;
};

// One row and what it owns.
struct ProblemRow {
  std::vector<float> query;
  std::vector<uint64_t> mask;
  std::vector<float> bias;
  std::vector<uint64_t> keep;
  AttentionRow row;  // its pointers are set by Problem::Rows
};

// Which features a random problem uses.
struct ProblemOptions {
  int64_t d_k = 16;
  int64_t d_v = 16;
  int64_t tokens = 64;
  int64_t rows = 1;
  DType dtype = DType::kF32;
  float scale = 0.25f;
  float softcap = 0.0f;
  bool causal = false;
  bool window_and_sinks = false;
  bool mask = false;
  bool bias = false;
  bool alibi = false;
  bool key_positions = false;
  bool keep = false;
  float sink_logit = -std::numeric_limits<float>::infinity();
};

struct RowResult {
  std::vector<float> output;
  float lse = 0.0f;
};

struct Problem {
  Problem(const ProblemOptions& options, uint32_t seed);

  AttentionParams params() const;
  // Row descriptions with their pointers set; valid while the problem is.
  std::vector<AttentionRow> Rows() const;
  float value_factor() const { return options.keep ? 1.0f / 0.75f : 1.0f; }

  ProblemOptions options;
  PoisonedCache cache;
  std::vector<ProblemRow> rows;
  std::vector<int64_t> key_positions;
};

// PackQueries and AttendStretch, with memory poisoned before.
void AttendRows(const AttentionParams& params, const std::vector<AttentionRow>& rows,
                int64_t first_block, const std::vector<KvHeadBlock>& blocks, float* partials);

// Computes the given rows in one AttendStretch call a stretch. `stretch_order` is the order in
// which the stretches are computed (empty: ascending); they are always merged ascending. Stretches
// a row does not see are skipped for it if `skip_unseen`.
std::vector<RowResult> Compute(const Problem& problem, const std::vector<size_t>& row_indices,
                               std::vector<int64_t> stretch_order = {}, bool skip_unseen = false);
std::vector<RowResult> ComputeAll(const Problem& problem);

// The same problem as it was when the cache held only the first `tokens` tokens.
Problem Truncated(const Problem& problem, int64_t tokens);

// Whether the bits are the same, -0 and NaN included.
bool SameBits(const RowResult& a, const RowResult& b);

// Whether `row` sees key `key`, from the definition in attention.h.
bool Sees(const ProblemRow& row, int64_t key);

// The exact result of one row and how far float32 may be from it. For each key: an error of the
// score, which e^x turns into a relative error of the weight; then the errors of e^x, of rescaling
// and of the sums.
struct ExactRow {
  std::vector<double> output;
  std::vector<double> tolerance;
  double lse = 0.0;
  double lse_tolerance = 0.0;
};
ExactRow ComputeExactly(const Problem& problem, size_t row_index);

// Compares all rows with their twins.
void ExpectMatchesExact(const Problem& problem, const std::vector<RowResult>& results);

}  // namespace attnserve::simd

#endif  // ATTNSERVE_TESTS_UNIT_SIMD_ATTENTION_PROBLEM_H_
