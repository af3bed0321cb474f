#include <algorithm>
#include <cstring>
#include <new>

#include "lib/attention/attention_layer_impl.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/simd/vector_ops.h"

namespace attnserve {
namespace {

// Projects, normalises and rotates the queries of all chunks into work.queries, [rows, stride],
// where they cannot be taken as given.
absl::Status PrepareQueries(const AttentionLayer::Impl& layer, absl::Span<const PassRows> ranges,
                            int64_t stride, ParallelRunner& runner, LayerWorkspace::Impl& work) {
  const LayerSpec& spec = layer.spec;
  const auto as_given = [&](const PassRows& range) {
    return TakesQueriesAsGiven(layer, *range.pass);
  };
  if (std::all_of(ranges.begin(), ranges.end(), as_given)) return absl::OkStatus();
  float* queries = work.queries.Reserve(static_cast<size_t>(work.row_count * stride));
  if (!layer.is_core()) {
    const auto input_of = [&](const LayerPass& pass) -> ProjectionInput {
      return {pass.x, layer.sinusoids.has_value() ? &*layer.sinusoids : nullptr,
              pass.query_positions, pass.query_position_base};
    };
    const float* x = ProjectionInputs(ranges, spec.input_size, input_of, runner, work);
    ATTNSERVE_RETURN_IF_ERROR(layer.query->Multiply(x, spec.input_size, work.row_count, queries,
                                                    stride, runner, *work.gemm));
  }
  const auto prepare = [&](int64_t task, int) {
    const RowChunk& chunk = work.chunks[static_cast<size_t>(task)];
    const LayerPass& pass = *chunk.pass;
    if (TakesQueriesAsGiven(layer, pass)) return;
    float* row = queries + chunk.row * stride;
    if (layer.is_core()) GatherHeads(pass.query, chunk.begin, chunk.end, stride, row);
    for (int64_t query = chunk.begin; query < chunk.end; ++query, row += stride) {
      PrepareHeads(layer, spec.attention.query_norm,
                   PositionOf(pass.query_positions, pass.query_position_base, query),
                   spec.head_count, row);
    }
  };
  RunTasks(runner, static_cast<int64_t>(work.chunks.size()), work.row_count * stride, prepare);
  return absl::OkStatus();
}

// Elements of a float type that are NaN or infinite: their exponent's bits are all set.
int64_t CountNonFinite(DType dtype, const void* elements, int64_t count) {
  const char* const data = static_cast<const char*>(elements);
  int64_t nonfinite = 0;
  if (dtype == DType::kF32) {
    for (int64_t i = 0; i < count; ++i) {
      uint32_t bits;
      std::memcpy(&bits, data + i * 4, sizeof bits);
      nonfinite += (bits & 0x7f800000u) == 0x7f800000u ? 1 : 0;
    }
    return nonfinite;
  }
  const uint32_t exponent = dtype == DType::kF16 ? 0x7c00u : 0x7f80u;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + i * 2, sizeof bits);
    nonfinite += (bits & exponent) == exponent ? 1 : 0;
  }
  return nonfinite;
}

}  // namespace

char* OutputAddress(const OutputTarget& output, int64_t query, int64_t piece) {
  const int64_t at = query * output.token_stride + piece * output.head_stride;
  return static_cast<char*>(output.data) + at * static_cast<int64_t>(ElementSize(output.dtype));
}

int64_t WriteOutput(const LayerPass& pass, int64_t query, int64_t piece, const float* values,
                    int64_t count) {
  const DType dtype = pass.output.dtype;
  char* const target = OutputAddress(pass.output, query, piece);
  if (IsPaddingQuery(pass.masks, query)) {
    // +0 has no bits set in any type.
    std::memset(target, 0, static_cast<size_t>(count) * ElementSize(dtype));
    return 0;
  }
  simd::Narrow(values, count, dtype, target);
  // What was written may not have reached the cache yet.
  return CountNonFinite(dtype, dtype == DType::kF32 ? static_cast<const void*>(values) : target,
                        count);
}

absl::Status AttentionLayer::Attend(absl::Span<const PassRows> ranges, ParallelRunner& runner,
                                    LayerWorkspace& workspace) const try {
  const Impl& layer = *impl_;
  const LayerSpec& spec = layer.spec;
  LayerWorkspace::Impl& work = *workspace.impl_;
  MakeChunks(ranges, std::max({spec.input_size, spec.query_width(), spec.output_size}), &work);
  if (work.row_count == 0) return absl::OkStatus();
  const int64_t query_stride = layer.is_core() ? spec.query_width() : layer.query->PaddedColumns();
  ATTNSERVE_RETURN_IF_ERROR(PrepareQueries(layer, ranges, query_stride, runner, work));

  AttendCore core(layer, ranges, query_stride, runner, work);
  core.Run();
  core.Count();
  core.WriteStages();
  if (layer.output == nullptr) return absl::OkStatus();

  const int64_t stride = layer.output->PaddedColumns();
  float* const results = work.outputs.Reserve(static_cast<size_t>(work.row_count * stride));
  ATTNSERVE_RETURN_IF_ERROR(layer.output->Multiply(work.contexts.data(), spec.context_width(),
                                                   work.row_count, results, stride, runner,
                                                   *work.gemm));
  RunTasks(runner, static_cast<int64_t>(work.chunks.size()), work.row_count * stride,
           [&](int64_t task, int) {
             RowChunk& chunk = work.chunks[static_cast<size_t>(task)];
             chunk.nonfinite_values = 0;
             for (int64_t query = chunk.begin; query < chunk.end; ++query) {
               chunk.nonfinite_values += WriteOutput(
                   *chunk.pass, query, 0, results + (chunk.row + query - chunk.begin) * stride,
                   spec.output_size);
             }
           });
  for (const RowChunk& chunk : work.chunks) chunk.pass->nonfinite_values += chunk.nonfinite_values;
  return absl::OkStatus();
} catch (const std::bad_alloc&) {
  return KernelFailure("out of memory for attention");
}

}  // namespace attnserve
