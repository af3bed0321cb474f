// Attention as the model code of transformers computes it, straight from a checkpoint's tensors, in
// double: what the mapping of checkpoints is compared with. Shares no code with the library.
#ifndef ATTNSERVE_TESTS_UNIT_MODEL_NAIVE_HUGGING_FACE_H_
#define ATTNSERVE_TESTS_UNIT_MODEL_NAIVE_HUGGING_FACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/model/test_checkpoint.h"

namespace attnserve {

// What the model code takes from config.json.
struct NaiveOptions {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_size = 1;
  bool causal = true;
  int64_t window = 0;  // tokens, the query's own included; 0: none
  double scale = 1.0;
  double norm_epsilon = 0.0;
  std::vector<double> inverse_frequencies;  // [head_size / 2]; empty: no rotation
};

struct NaiveResult {
  std::vector<double> output;  // [T, hidden]
  // Bound on the difference of two evaluations of `output` in double, in any order of summation:
  // every intermediate is a sum of at most `depth` terms, each with a relative error of `depth`
  // units, a score's absolute error becomes a weight's relative one, and a last product with W_o
  // adds up absolute values.
  double bound = 0.0;
};

// The attention modules for x [T, hidden]. `scope` is what all names of the layer's tensors begin
// with; biases and norms are applied where the checkpoint has them.
NaiveResult NaiveLlama(const TestCheckpoint& checkpoint, const std::string& scope,
                       const std::vector<double>& x, int64_t hidden, const NaiveOptions& options);
NaiveResult NaiveGpt2(const TestCheckpoint& checkpoint, const std::string& scope,
                      const std::vector<double>& x, int64_t hidden, const NaiveOptions& options);
NaiveResult NaiveBert(const TestCheckpoint& checkpoint, const std::string& scope,
                      const std::vector<double>& x, int64_t hidden, const NaiveOptions& options);

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_MODEL_NAIVE_HUGGING_FACE_H_
