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

// What it takes at least; a ceiling is not looked at if nothing depends on it.
inline double FloorSeconds(const Cost& cost, double bandwidth, double peak) {
  const double reading = cost.bytes > 0.0 ? cost.bytes / bandwidth : 0.0;
  const double computing = cost.operations > 0.0 ? cost.operations / peak : 0.0;
  return std::max(reading, computing);
}

// Seconds of `work` beside its floor, with ceilings of the same round: the median round.
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
    rounds.push_back({best, FloorSeconds(cost, bandwidth, peak)});
  }
  return MedianRound(std::move(rounds));
}

}  // namespace attnserve::bench

#endif  // ATTNSERVE_TESTS_BENCH_ROUNDS_H_
