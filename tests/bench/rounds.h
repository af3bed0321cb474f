// Measurements in turn with those of their ceilings.
#ifndef ATTNSERVE_TESTS_BENCH_ROUNDS_H_
#define ATTNSERVE_TESTS_BENCH_ROUNDS_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tests/bench/benchmarks.h"

namespace attnserve::bench {

// Bytes that must be read and operations that must be done.
struct Cost {
  double bytes = 0.0;
  double operations = 0.0;
};

// Seconds of `work` beside max(bytes / bandwidth, operations / peak), ceilings of the same round:
// the median round.
inline Comparison TimeAgainstFloor(const Bench& bench, const Cost& cost,
                                   const std::function<void()>& work) {
  work();  // warms caches and workspaces
  std::vector<Comparison> rounds;
  for (int round = 0; round < bench.plan.rounds; ++round) {
    // Twice each, the better counts: on a shared machine either may be disturbed.
    double bandwidth = 0.0, peak = 0.0, best = HUGE_VAL;
    for (int side = 0; side < 2; ++side) {
      if (cost.bytes > 0.0) bandwidth = std::max(bandwidth, bench.ceilings.Bandwidth());
      if (cost.operations > 0.0) peak = std::max(peak, bench.ceilings.Peak());
      best = std::min(best, TimeOf(work));
    }
    double floor = 0.0;
    if (cost.bytes > 0.0) floor = cost.bytes / bandwidth;
    if (cost.operations > 0.0) floor = std::max(floor, cost.operations / peak);
    rounds.push_back({best, floor});
  }
  return MedianRound(std::move(rounds));
}

}  // namespace attnserve::bench

#endif  // ATTNSERVE_TESTS_BENCH_ROUNDS_H_
