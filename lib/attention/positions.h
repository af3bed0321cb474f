// How token positions enter a layer.
#ifndef ATTNSERVE_LIB_ATTENTION_POSITIONS_H_
#define ATTNSERVE_LIB_ATTENTION_POSITIONS_H_

#include <cstdint>
#include <vector>

#include "lib/attention/layer_spec.h"

namespace attnserve {

// Angles of rotary positions (Su et al. 2021, section 3.2.2), with the frequency scalings of
// Hugging Face transformers. Computed in double, rounded once. Immutable.
class RotaryAngles {
 public:
  RotaryAngles(const RotaryPosition& rotary, int64_t key_head_size);

  int64_t dimension() const { return dimension_; }  // leading elements of a head that turn
  int64_t pairs() const { return dimension_ / 2; }
  bool interleaved() const { return interleaved_; }

  // cosine[i], sine[i] of position * frequency[i], times the scaling's factor, for each pair.
  void At(int64_t position, float* cosine, float* sine) const;

 private:
  double DynamicBase(int64_t position) const;

  int64_t dimension_;
  bool interleaved_;
  double theta_;
  double factor_ = 1.0;              // of cosine and sine
  std::vector<double> frequencies_;  // [pairs], radians a position
  double ntk_factor_ = 0.0;          // 0: not dynamic NTK
  int64_t ntk_tokens_ = 0;
};

// Sinusoidal positions of inputs of `size` elements, any size and any position (Vaswani et al.
// 2017, section 3.5). Computed in double, rounded once. Immutable.
class Sinusoids {
 public:
  Sinusoids(double base, int64_t size);

  // x[2i] += sin(position / base^(2i/d)), x[2i+1] += cos(position / base^(2i/d)), d = size.
  void Add(int64_t position, float* x) const;

 private:
  int64_t size_;
  std::vector<double> frequencies_;  // [ceil(size / 2)], radians a position
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_POSITIONS_H_
