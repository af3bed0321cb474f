#include "tests/unit/attention/typed_elements.h"

namespace attnserve {

std::vector<double> SwapTokensAndHeads(const std::vector<double>& values, int64_t tokens,
                                       int64_t heads, int64_t size) {
  std::vector<double> swapped(values.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t e = 0; e < size; ++e) {
        const int64_t to = (h * tokens + t) * size + e;
        const int64_t from = (t * heads + h) * size + e;
        swapped[static_cast<size_t>(to)] = values[static_cast<size_t>(from)];
      }
    }
  }
  return swapped;
}

}  // namespace attnserve
