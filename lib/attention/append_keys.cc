#include <new>

#include "lib/attention/attention_layer_impl.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"

namespace attnserve {

absl::Status AttentionLayer::AppendKeys(absl::Span<const PassRows> ranges, ParallelRunner& runner,
                                        LayerWorkspace& workspace) const try {
  const Impl& layer = *impl_;
  const LayerSpec& spec = layer.spec;
  LayerWorkspace::Impl& work = *workspace.impl_;
  MakeChunks(ranges, &work);
  if (work.row_count == 0) return absl::OkStatus();
  const int64_t chunk_count = static_cast<int64_t>(work.chunks.size());
  const int64_t stride =
      layer.is_core() ? spec.key_width() + spec.value_width() : layer.key_value->PaddedColumns();
  float* joined = work.keys.Reserve(static_cast<size_t>(work.row_count * stride));

  if (!layer.is_core()) {
    const int64_t width = layer.key_value->in();
    float* x = work.x.Reserve(static_cast<size_t>(work.row_count * width));
    runner.Run(chunk_count, [&](int64_t task, int) {
      const RowChunk& chunk = work.chunks[static_cast<size_t>(task)];
      const LayerPass& pass = *chunk.pass;
      GatherRows(spec, layer.is_cross() ? pass.context : pass.x, chunk.begin, chunk.end,
                 pass.key_positions, pass.key_position_base, !layer.is_cross(),
                 x + chunk.row * width);
    });
    ATTNSERVE_RETURN_IF_ERROR(
        layer.key_value->Multiply(x, width, work.row_count, joined, stride, runner, *work.gemm));
  }
  runner.Run(chunk_count, [&](int64_t task, int) {
    const RowChunk& chunk = work.chunks[static_cast<size_t>(task)];
    const LayerPass& pass = *chunk.pass;
    float* row = joined + chunk.row * stride;
    if (layer.is_core()) {
      GatherHeads(pass.key, chunk.begin, chunk.end, stride, row);
      GatherHeads(pass.value, chunk.begin, chunk.end, stride, row + spec.key_width());
    }
    for (int64_t token = chunk.begin; token < chunk.end; ++token, row += stride) {
      PrepareHeads(layer, spec.attention.key_norm,
                   PositionOf(pass.key_positions, pass.key_position_base, token),
                   spec.kv_head_count, row);
    }
  });
  // Heads are shared out, not tokens: two tokens of one block never meet on two threads.
  runner.Run(spec.kv_head_count, [&](int64_t head, int) {
    for (const RowChunk& chunk : work.chunks) {
      const float* row = joined + chunk.row * stride;
      const HeadsView keys = {
          DType::kF32,        row,    chunk.end - chunk.begin, spec.kv_head_count,
          spec.key_head_size, stride, spec.key_head_size};
      const HeadsView values = {
          DType::kF32,         row + spec.key_width(), chunk.end - chunk.begin,
          spec.kv_head_count,  spec.value_head_size,   stride,
          spec.value_head_size};
      chunk.pass->cache->WriteTokens(chunk.pass->past_tokens + chunk.begin, keys, values, head,
                                     head + 1);
    }
  });
  return absl::OkStatus();
} catch (const std::bad_alloc&) {
  return KernelFailure("out of memory for projected keys and values");
}

}  // namespace attnserve
