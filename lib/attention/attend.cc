#include <algorithm>
#include <cmath>
#include <new>

#include "lib/attention/attention_layer_impl.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/simd/vector_ops.h"

namespace attnserve {
namespace {

// Projects, normalises and rotates the queries of all chunks into work.queries, [rows, stride].
absl::Status PrepareQueries(const AttentionLayer::Impl& layer, int64_t stride,
                            ParallelRunner& runner, LayerWorkspace::Impl& work) {
  const LayerSpec& spec = layer.spec;
  const int64_t chunk_count = static_cast<int64_t>(work.chunks.size());
  float* queries = work.queries.Reserve(static_cast<size_t>(work.row_count * stride));
  if (!layer.is_core()) {
    float* x = work.x.Reserve(static_cast<size_t>(work.row_count * spec.input_size));
    runner.Run(chunk_count, [&](int64_t task, int) {
      const RowChunk& chunk = work.chunks[static_cast<size_t>(task)];
      const LayerPass& pass = *chunk.pass;
      GatherRows(spec, pass.x, chunk.begin, chunk.end, pass.query_positions,
                 pass.query_position_base, true, x + chunk.row * spec.input_size);
    });
    ATTNSERVE_RETURN_IF_ERROR(layer.query->Multiply(x, spec.input_size, work.row_count, queries,
                                                    stride, runner, *work.gemm));
  }
  runner.Run(chunk_count, [&](int64_t task, int) {
    const RowChunk& chunk = work.chunks[static_cast<size_t>(task)];
    const LayerPass& pass = *chunk.pass;
    float* row = queries + chunk.row * stride;
    if (layer.is_core()) GatherHeads(pass.query, chunk.begin, chunk.end, stride, row);
    for (int64_t query = chunk.begin; query < chunk.end; ++query, row += stride) {
      PrepareHeads(layer, spec.attention.query_norm,
                   PositionOf(pass.query_positions, pass.query_position_base, query),
                   spec.head_count, row);
    }
  });
  return absl::OkStatus();
}

bool IsPaddingQuery(const SequenceMasks& masks, int64_t query) {
  if (masks.valid_queries >= 0 && query >= masks.valid_queries) return true;
  return masks.query_mask != nullptr && masks.query_mask[query] == 0;
}

// Rounds `count` results to the output's type at element `at`; zeros for padding.
void Store(const OutputTarget& output, int64_t at, float* values, int64_t count, bool padding) {
  if (padding) std::fill_n(values, count, 0.0f);
  StoreFromF32(
      values, count, output.dtype,
      static_cast<char*>(output.data) + at * static_cast<int64_t>(ElementSize(output.dtype)));
}

int64_t CountNonFinite(const float* values, int64_t count) {
  if (simd::AllFinite(values, count)) return 0;
  return std::count_if(values, values + count, [](float value) { return !std::isfinite(value); });
}

// Writes [rows, stride] to the passes' targets.
void WriteOutputs(const LayerSpec& spec, absl::Span<const PassRows> ranges, float* rows,
                  int64_t stride) {
  const bool by_head = !spec.output_projection;
  const int64_t width = by_head ? spec.value_head_size : spec.output_size;
  for (const PassRows& range : ranges) {
    const OutputTarget& output = range.pass->output;
    for (int64_t query = range.begin; query < range.end; ++query, rows += stride) {
      const bool padding = IsPaddingQuery(range.pass->masks, query);
      for (int64_t head = 0; head < (by_head ? spec.head_count : 1); ++head) {
        float* values = rows + head * width;
        Store(output, query * output.token_stride + head * output.head_stride, values, width,
              padding);
        range.pass->nonfinite_values += CountNonFinite(values, width);
      }
    }
  }
}

}  // namespace

absl::Status AttentionLayer::Attend(absl::Span<const PassRows> ranges, ParallelRunner& runner,
                                    LayerWorkspace& workspace) const try {
  const Impl& layer = *impl_;
  const LayerSpec& spec = layer.spec;
  LayerWorkspace::Impl& work = *workspace.impl_;
  MakeChunks(ranges, &work);
  if (work.row_count == 0) return absl::OkStatus();
  const int64_t query_stride = layer.is_core() ? spec.query_width() : layer.query->PaddedColumns();
  ATTNSERVE_RETURN_IF_ERROR(PrepareQueries(layer, query_stride, runner, work));

  AttendCore core(layer, ranges, query_stride, runner, work);
  core.Run();
  core.CountMaskedRows();
  core.WriteStages();

  float* contexts = work.contexts.data();
  if (layer.output == nullptr) {
    WriteOutputs(spec, ranges, contexts, spec.context_width());
    return absl::OkStatus();
  }
  const int64_t stride = layer.output->PaddedColumns();
  float* outputs = work.outputs.Reserve(static_cast<size_t>(work.row_count * stride));
  ATTNSERVE_RETURN_IF_ERROR(layer.output->Multiply(contexts, spec.context_width(), work.row_count,
                                                   outputs, stride, runner, *work.gemm));
  WriteOutputs(spec, ranges, outputs, stride);
  return absl::OkStatus();
} catch (const std::bad_alloc&) {
  return KernelFailure("out of memory for attention");
}

}  // namespace attnserve
