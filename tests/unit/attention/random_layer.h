// Random layers and sequences over everything a LayerSpec and a pass can say.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_RANDOM_LAYER_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_RANDOM_LAYER_H_

#include <cstdint>
#include <random>
#include <vector>

#include "lib/attention/layer_spec.h"
#include "lib/attention/reference.h"
#include "tests/unit/attention/layer_harness.h"

namespace attnserve {

// Draws with one generator, so that a seed names a case.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  uint64_t Bits() { return random_(); }
  int64_t Between(int64_t least, int64_t most) {  // both inclusive
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool Chance(double probability) {
    return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
  }
  template <typename T>
  T Pick(std::initializer_list<T> choices) {
    return choices.begin()[Between(0, static_cast<int64_t>(choices.size()) - 1)];
  }
  double Normal() { return normal_(random_); }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

struct RandomSequence {
  reference::Input input;
  RunPlan plan;
};

struct RandomLayer {
  LayerSpec spec;
  reference::Weights weights;
  WeightForm form;
  GemmBackend backend = GemmBackend::kNative;
};

// A layer of small sizes, most of them odd or beside a vector's width.
RandomLayer MakeRandomLayer(Dice& dice);

// A sequence for it: lengths, positions, masks, dropout, and how its tensors lie in memory. Places
// that no query sees often hold NaN and infinities.
RandomSequence MakeRandomSequence(const RandomLayer& layer, Dice& dice);

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_RANDOM_LAYER_H_
