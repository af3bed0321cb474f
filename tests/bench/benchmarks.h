// One function for each benchmark: adds its lines to the table.
#ifndef ATTNSERVE_TESTS_BENCH_BENCHMARKS_H_
#define ATTNSERVE_TESTS_BENCH_BENCHMARKS_H_

#include "tests/bench/ceilings.h"
#include "tests/bench/table.h"

namespace attnserve::bench {

struct Bench {
  Plan plan;
  Ceilings& ceilings;
  Table& table;
};

// Kernels, in process.
void DecodeAttention(const Bench& bench);  // one query a sequence over long caches
void Projections(const Bench& bench);      // 1 to 64 rows of a 4096 x 4096 product
void Prefill(const Bench& bench);  // 2,048 causal queries, alone and with the layer's products

// Through a real server on a real socket.
void RpcLatency(const Bench& bench);    // one caller on a tiny layer, beside an echo
void ManySessions(const Bench& bench);  // 32 sessions on a layer bound by its weights
void LongPrompt(const Bench& bench);    // what a long prompt does to others' decode steps
void Memory(const Bench& bench);        // what sessions of 1,000 tokens take
void Scale(const Bench& bench);         // how cost grows with sessions, context, tokens held

}  // namespace attnserve::bench

#endif  // ATTNSERVE_TESTS_BENCH_BENCHMARKS_H_
