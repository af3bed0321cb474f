#include <algorithm>
#include <new>

#include "lib/attention/attention_layer_impl.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"

namespace attnserve {
namespace {

// Writes new tokens of a pass to heads [head_begin, head_end) of its cache. `rows` holds their keys
// and values side by side.
void WriteToCache(const LayerSpec& spec, const PassRows& range, const float* rows, int64_t stride,
                  int64_t head_begin, int64_t head_end) {
  HeadsView keys;
  keys.data = rows;
  keys.tokens = range.end - range.begin;
  keys.heads = spec.kv_head_count;
  keys.size = spec.key_head_size;
  keys.token_stride = stride;
  keys.head_stride = spec.key_head_size;
  HeadsView values = keys;
  values.data = rows + spec.key_width();
  values.size = spec.value_head_size;
  values.head_stride = spec.value_head_size;
  range.pass->cache->WriteTokens(range.pass->past_tokens + range.begin, keys, values, head_begin,
                                 head_end);
}

}  // namespace

absl::Status AttentionLayer::AppendKeys(absl::Span<const PassRows> ranges, ParallelRunner& runner,
                                        LayerWorkspace& workspace) const try {
  const Impl& layer = *impl_;
  const LayerSpec& spec = layer.spec;
  LayerWorkspace::Impl& work = *workspace.impl_;
  const int64_t width = layer.is_core() ? 0 : layer.key_value->in();
  const int64_t stride =
      layer.is_core() ? spec.key_width() + spec.value_width() : layer.key_value->PaddedColumns();
  MakeChunks(ranges, std::max(width, stride), &work);
  if (work.row_count == 0) return absl::OkStatus();
  const int64_t chunk_count = static_cast<int64_t>(work.chunks.size());
  float* joined = work.keys.Reserve(static_cast<size_t>(work.row_count * stride));

  if (!layer.is_core()) {
    const Sinusoids* const sinusoids =
        layer.sinusoids.has_value() && !layer.is_cross() ? &*layer.sinusoids : nullptr;
    const auto input_of = [&](const LayerPass& pass) -> ProjectionInput {
      return {layer.is_cross() ? pass.context : pass.x, sinusoids, pass.key_positions,
              pass.key_position_base};
    };
    const float* x = ProjectionInputs(ranges, width, input_of, runner, work);
    ATTNSERVE_RETURN_IF_ERROR(
        layer.key_value->Multiply(x, width, work.row_count, joined, stride, runner, *work.gemm));
  }
  RunTasks(runner, chunk_count, work.row_count * stride, [&](int64_t task, int) {
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
  RunTasks(runner, spec.kv_head_count, work.row_count * stride, [&](int64_t head, int) {
    const float* rows = joined;
    for (const PassRows& range : ranges) {
      WriteToCache(spec, range, rows, stride, head, head + 1);
      rows += (range.end - range.begin) * stride;
    }
  });
  return absl::OkStatus();
} catch (const std::bad_alloc&) {
  return KernelFailure("out of memory for projected keys and values");
}

}  // namespace attnserve
