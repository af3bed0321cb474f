// Runs single measurements when asked, for programs that time something else in between.
#ifndef ATTNSERVE_TESTS_BENCH_ON_REQUEST_H_
#define ATTNSERVE_TESTS_BENCH_ON_REQUEST_H_

#include <iosfwd>

#include "tests/bench/table.h"

namespace attnserve::bench {

// Reads shapes from `in`, one a line, in which numbers stand in this order:
//   attend SEQUENCES TOKENS QUERIES HEADS KV_HEADS HEAD_SIZE
// and answers each with the seconds one causal pass over them took. Shapes are kept: asking again
// costs one pass.
void AnswerRequests(const Plan& plan, std::istream& in, std::ostream& out);

}  // namespace attnserve::bench

#endif  // ATTNSERVE_TESTS_BENCH_ON_REQUEST_H_
