#include "absl/strings/str_format.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/core_sequences.h"
#include "tests/bench/rounds.h"

namespace attnserve::bench {
namespace {

CoreShape LongCaches(const Bench& bench, int64_t heads, DType dtype) {
  CoreShape shape;
  shape.sequences = 8;
  shape.tokens = bench.plan.quick ? 256 : 4096;
  shape.heads = heads;
  shape.kv_heads = 8;
  shape.head_size = 128;
  shape.cache_dtype = dtype;
  return shape;
}

// Half the bytes should not take longer.
void I8BesideF16(const Bench& bench) {
  const CoreShape shape = LongCaches(bench, 32, DType::kI8);
  CoreSequences f16(LongCaches(bench, 32, DType::kF16), bench.plan.threads);
  CoreSequences i8(shape, bench.plan.threads);
  const Comparison comparison = Compare(
      bench.plan.rounds, [&] { return TimeOf([&] { f16.Attend(); }); },
      [&] { return TimeOf([&] { i8.Attend(); }); });
  bench.table.Add(
      AtMost(1.0, LineOf(comparison, 1e3, "ms", "decode attention",
                         absl::StrFormat("H=32 G=8 d=128, 8 x %d, I8 beside F16", shape.tokens))));
}

}  // namespace

void DecodeAttention(const Bench& bench) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    for (const int64_t heads : {8, 32, 64}) {
      const CoreShape shape = LongCaches(bench, heads, dtype);
      CoreSequences sequences(shape, bench.plan.threads);
      const Comparison timing = TimeAgainstFloor(
          bench, {sequences.cache_bytes(), sequences.operations()}, [&] { sequences.Attend(); });
      Line line = LineOf(timing, 1e3, "ms", "decode attention",
                         absl::StrFormat("H=%d G=8 d=128, 8 x %d tokens, %s", heads, shape.tokens,
                                         std::string(DTypeName(dtype))));
      line.ratio = 1.0 / line.ratio;  // of the floor, which is the ceiling of the speed
      if (dtype == DType::kF32) {
        line = AtLeast(0.88, line);
      } else if (heads == 32 && dtype != DType::kI8) {
        line = AtLeast(0.80, line);
      }
      bench.table.Add(line);
    }
  }
  I8BesideF16(bench);
}

}  // namespace attnserve::bench
