// Weights from a seed: the same bits on every machine and in every order of filling.
//
// Element `index` of stream `stream` depends on (seed, stream, index) only: three 64-bit words of
// SplitMix64 (Steele, Lea, Flood 2014) give twelve 16-bit numbers u, and the element is
//   (sum of u - 12 * 65535 / 2) / 65536,
// the sum of twelve uniform numbers (Irwin-Hall): mean 0, variance 1, within 0.0024 of the normal
// distribution function. Integers are exact and nothing is left to a mathematical library.
#ifndef ATTNSERVE_LIB_MODEL_SEEDED_WEIGHTS_H_
#define ATTNSERVE_LIB_MODEL_SEEDED_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "lib/attention/attention_layer.h"
#include "lib/attention/layer_spec.h"

namespace attnserve {

// One element as described above.
double SeededNormal(uint64_t seed, uint64_t stream, uint64_t index);

// F32 weights of one layer and their memory: matrices [out, in] and, where the layer has them,
// biases, all of variance 1 / in.
struct SeededLayer {
  LayerWeights weights;  // views of `matrices`
  std::vector<std::vector<float>> matrices;
};

// Layer `layer` of a model drawn from `seed`. `spec` is completed and not core attention. Throws
// std::bad_alloc.
SeededLayer MakeSeededLayer(const LayerSpec& spec, uint64_t seed, int64_t layer);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_SEEDED_WEIGHTS_H_
