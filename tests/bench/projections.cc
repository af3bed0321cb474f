#include "absl/strings/str_format.h"
#include "lib/engine/worker_pool.h"
#include "lib/gemm/gemm_workspace.h"
#include "lib/gemm/packed_matrix.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/check.h"
#include "tests/bench/core_sequences.h"
#include "tests/bench/rounds.h"

namespace attnserve::bench {

void Projections(const Bench& bench) {
  const int64_t size = bench.plan.quick ? 512 : 4096;
  const std::vector<float> weights = RandomFloats(size * size, 1);
  const std::vector<float> x = RandomFloats(64 * size, 2);
  std::vector<float> y(static_cast<size_t>(64 * size));
  WorkerPool workers(bench.plan.threads);
  const auto workspace = MakeGemmWorkspace();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<uint8_t> stored(weights.size() * ElementSize(dtype));
    StoreFromF32(weights.data(), size * size, dtype, stored.data());
    const WeightView view = {dtype, stored.data(), size, size, size, 1};
    const auto matrix = Check(PackedMatrix::Create({view}, {}, GemmBackend::kAuto));
    for (const int64_t rows : {1, 2, 4, 8, 16, 32, 64}) {
      const Cost cost = {static_cast<double>(size * size) * static_cast<double>(ElementSize(dtype)),
                         2.0 * static_cast<double>(rows * size * size)};
      const Comparison timing = TimeAgainstFloor(bench, cost, [&] {
        Check(matrix->Multiply(x.data(), size, rows, y.data(), size, workers, *workspace));
      });
      const bool both = dtype == DType::kF32 && (rows == 8 || rows == 16);
      bench.table.Add(
          AtMost(both ? 1.35 : 1.2, LineOf(timing, 1e3, "ms", "projection",
                                           absl::StrFormat("%d rows, %d x %d, %s", rows, size, size,
                                                           std::string(DTypeName(dtype))))));
    }
  }
}

}  // namespace attnserve::bench
