// Runs single measurements when asked, for programs that time something else in between.
#ifndef ATTNSERVE_TESTS_BENCH_ON_REQUEST_H_
#define ATTNSERVE_TESTS_BENCH_ON_REQUEST_H_

#include <iosfwd>

#include "tests/bench/ceilings.h"
#include "tests/bench/table.h"

namespace attnserve::bench {

// Reads requests from `in`, one a line, in which numbers stand in this order:
//   attend SEQUENCES TOKENS QUERIES HEADS KV_HEADS HEAD_SIZE
//   floor  (the same)
// and answers each with seconds: those that one causal pass over the sequences took, or those it
// would take at the machine's limits, measured now: the greater of its cache's bytes / bandwidth
// and its operations / peak. Shapes are kept: asking again costs one pass.
void AnswerRequests(const Plan& plan, Ceilings& ceilings, std::istream& in, std::ostream& out);

}  // namespace attnserve::bench

#endif  // ATTNSERVE_TESTS_BENCH_ON_REQUEST_H_
