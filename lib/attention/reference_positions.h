// The float64 twin of everything that depends on token positions, and of the head norms.
#ifndef ATTNSERVE_LIB_ATTENTION_REFERENCE_POSITIONS_H_
#define ATTNSERVE_LIB_ATTENTION_REFERENCE_POSITIONS_H_

#include <cstdint>
#include <vector>

#include "lib/attention/layer_spec.h"

namespace attnserve::reference {

// Element `index` of the sinusoidal encoding of `position` for inputs of `size` elements
// (Vaswani et al. 2017, section 3.5): sin(p / base^(2i / size)) at 2i, the cosine at 2i + 1.
double SinusoidalElement(double base, int64_t size, int64_t position, int64_t index);

// Cosine and sine by which one pair of a head is rotated, times the scaling's attention factor.
struct Rotation {
  double cosine = 1.0;
  double sine = 0.0;
};

// The rotations of the `dimension` / 2 pairs at `position`. Plain frequencies theta^(-2i/dimension)
// (Su et al. 2021, section 3.2.2), scaled as Hugging Face transformers' modeling_rope_utils does:
// "linear", "dynamic", "yarn", "llama3".
std::vector<Rotation> RotaryTable(const RotaryPosition& rotary, int64_t dimension,
                                  int64_t position);

// The elements of pair `pair` in a head whose first `dimension` elements are rotated.
struct PairIndices {
  int64_t first = 0;
  int64_t second = 0;
};
PairIndices RotaryPair(RotaryPosition::Pairing pairing, int64_t dimension, int64_t pair);

// Rotates heads [tokens, heads, size], token t at positions[t], in place.
void ApplyRotary(const RotaryPosition& rotary, const std::vector<int64_t>& positions, int64_t heads,
                 int64_t size, std::vector<double>* values);

// Normalises every run of `size` elements in place (layer.proto, HeadNorm).
void ApplyHeadNorm(const HeadNorm& norm, int64_t size, std::vector<double>* values);

// One slope a query head: the option's own, else the sequence of Press et al. 2021, section 3:
// 2^(-8/n), 2^(-16/n), ... for n heads, n a power of two; for other n the sequence of the next
// lower power of two, then every second element of the sequence of the next higher one.
std::vector<double> AlibiSlopesOf(const AlibiPosition& alibi, int64_t head_count);

}  // namespace attnserve::reference

#endif  // ATTNSERVE_LIB_ATTENTION_REFERENCE_POSITIONS_H_
