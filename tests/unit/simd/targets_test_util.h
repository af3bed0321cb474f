// Runs kernels on every instruction set this machine has, not only on the best one.
#ifndef ATTNSERVE_TESTS_UNIT_SIMD_TARGETS_TEST_UTIL_H_
#define ATTNSERVE_TESTS_UNIT_SIMD_TARGETS_TEST_UTIL_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace attnserve::simd {

// Highway's bits of the targets that are compiled and supported here, best first.
std::vector<int64_t> AvailableTargets();

// Makes the kernels use one target until the scope ends.
class TargetScope {
 public:
  explicit TargetScope(int64_t target);
  ~TargetScope();
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;
};

// Calls body() once per available target, its name in the test's trace.
void ForEachTarget(const std::function<void()>& body);

// Roundings of one multiply-and-add on the current target: 1 or 2.
double RoundingsPerStep();

}  // namespace attnserve::simd

#endif  // ATTNSERVE_TESTS_UNIT_SIMD_TARGETS_TEST_UTIL_H_
