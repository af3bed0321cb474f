#include "tests/unit/simd/targets_test_util.h"

#include <string>

#include "gtest/gtest.h"
#include "lib/simd/targets.h"
#include "lib/simd/vector_ops.h"
// The line above comes first: it chooses the targets.
#include "hwy/targets.h"

namespace attnserve::simd {
namespace {

void UseTargets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<int64_t> AvailableTargets() {
  std::vector<int64_t> targets;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  return targets;
}

TargetScope::TargetScope(int64_t target) { UseTargets(target); }

TargetScope::~TargetScope() { UseTargets(0); }

void ForEachTarget(const std::function<void()>& body) {
  for (const int64_t target : AvailableTargets()) {
    const TargetScope scope(target);
    SCOPED_TRACE(std::string("target ") + InstructionSet());
    body();
  }
}

double RoundingsPerStep() { return std::string(KernelFamily()) == "fma" ? 1.0 : 2.0; }

}  // namespace attnserve::simd
