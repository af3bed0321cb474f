// What the machine can do at most, measured anew whenever it is asked.
#ifndef ATTNSERVE_TESTS_BENCH_CEILINGS_H_
#define ATTNSERVE_TESTS_BENCH_CEILINGS_H_

#include <memory>

#include "tests/bench/table.h"

namespace attnserve::bench {

// Measures with the plan's threads; quickly on small memory and matrices, which says less. Not
// thread-safe.
class Ceilings {
 public:
  explicit Ceilings(const Plan& plan);
  ~Ceilings();

  // Bytes a second that all threads together read from a buffer far larger than the caches.
  double Bandwidth();
  // F32 operations a second of oneDNN's product of 2048 x 2048 matrices, its rows shared out
  // between the threads.
  double Peak();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnserve::bench

#endif  // ATTNSERVE_TESTS_BENCH_CEILINGS_H_
