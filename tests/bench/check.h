// Benchmarks end at the first error.
#ifndef ATTNSERVE_TESTS_BENCH_CHECK_H_
#define ATTNSERVE_TESTS_BENCH_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attnserve::bench {

inline void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "attnserve_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

template <class T>
T Check(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

}  // namespace attnserve::bench

#endif  // ATTNSERVE_TESTS_BENCH_CHECK_H_
