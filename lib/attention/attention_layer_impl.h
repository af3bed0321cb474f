// Inside of AttentionLayer.
#ifndef ATTNSERVE_LIB_ATTENTION_ATTENTION_LAYER_IMPL_H_
#define ATTNSERVE_LIB_ATTENTION_ATTENTION_LAYER_IMPL_H_

#include <memory>
#include <optional>
#include <vector>

#include "lib/attention/attention_layer.h"
#include "lib/attention/positions.h"
#include "lib/base/aligned_buffer.h"
#include "lib/simd/attention.h"

namespace attnserve {

struct AttentionLayer::Impl {
  LayerSpec spec;
  std::unique_ptr<PackedMatrix> query, key_value, output;  // null: none
  std::optional<RotaryAngles> rotary;
  float scale = 1.0f;

  bool is_core() const { return spec.kind == LayerKind::kCoreAttention; }
  bool is_cross() const { return spec.kind == LayerKind::kCrossAttention; }
};

// Memory of one worker.
struct AttendMemory {
  AlignedBuffer<float> partial;  // of one stretch, [rows, PartialFloats]
  AlignedBuffer<float> total;    // of the stretches so far
  AlignedBuffer<float> scratch;
  AlignedBuffer<uint64_t> bits;  // [rows, blocks]
  AlignedBuffer<uint64_t> keep;  // [rows, blocks]
  AlignedBuffer<float> bias;     // [rows, blocks * 64]
  AlignedBuffer<float> scores;   // [S], for stages
  std::vector<simd::AttentionRow> rows;
  std::vector<simd::KvHeadBlock> blocks;
};

// A few rows of one pass, for work that is done row by row.
struct RowChunk {
  const LayerPass* pass = nullptr;
  int64_t begin = 0;  // of the pass
  int64_t end = 0;
  int64_t row = 0;  // row of the joined matrices that `begin` has
};

// One task of Attend: some queries of one pass, all heads of one key/value head.
struct AttendTask {
  const LayerPass* pass = nullptr;
  int64_t kv_head = 0;
  int64_t query_begin = 0;  // of the pass
  int64_t query_end = 0;
  int64_t first_row = 0;    // row of `queries` and `contexts` that query_begin has
  int64_t partial_row = 0;  // first row of this task in `partials`
};

struct LayerWorkspace::Impl {
  AlignedBuffer<float> x;         // gathered inputs
  AlignedBuffer<float> keys;      // [rows, keys | values]
  AlignedBuffer<float> queries;   // [rows, H * d_k]
  AlignedBuffer<float> contexts;  // [rows, H * d_v]
  AlignedBuffer<float> outputs;   // [rows, padded d_out]
  AlignedBuffer<float> lse;       // [rows, H]
  AlignedBuffer<float> partials;  // [stretch][row of all tasks], when stretches are shared out
  std::vector<RowChunk> chunks;
  int64_t row_count = 0;  // of all ranges
  std::vector<AttendTask> tasks;
  std::vector<uint8_t> seen;  // [task, stretch] whether any row sees any of its keys
  std::vector<AttendMemory> workers;
  std::unique_ptr<GemmWorkspace, void (*)(GemmWorkspace*)> gemm = MakeGemmWorkspace();
};

// The attention function of one call of Attend, between the projections.
class AttendCore {
 public:
  // `queries` has rows of query_stride elements.
  AttendCore(const AttentionLayer::Impl& layer, absl::Span<const PassRows> ranges,
             int64_t query_stride, ParallelRunner& runner, LayerWorkspace::Impl& workspace);

  // From `queries` to `contexts` and `lse`.
  void Run();
  // Adds the rows with nothing to attend to the passes' counts.
  void CountMaskedRows();
  // Writes the stages that passes ask for (stage_outputs.cc).
  void WriteStages();

 private:
  void MakeTasks();
  void RunWholeTasks();
  void RunSplitTasks(int64_t stretches);
  simd::AttentionParams Params(const LayerPass& pass) const;
  void PrepareRows(const AttendTask& task, AttendMemory& memory) const;
  bool AttendOneStretch(const AttendTask& task, AttendMemory& memory, int64_t stretch,
                        float* partials) const;
  void FinishTask(const AttendTask& task, const float* totals);
  void WriteRowStages(const LayerPass& pass, int64_t query, int64_t row, int64_t head,
                      AttendMemory& memory) const;

  const AttentionLayer::Impl& layer_;
  const LayerSpec& spec_;
  absl::Span<const PassRows> ranges_;
  int64_t query_stride_;
  ParallelRunner& runner_;
  LayerWorkspace::Impl& workspace_;
  int64_t task_rows_ = 0;
};

// Cuts the ranges into chunks, for which rows are joined one after the other.
void MakeChunks(absl::Span<const PassRows> ranges, LayerWorkspace::Impl* workspace);

// Positions of a pass's queries or new keys.
inline int64_t PositionOf(const int64_t* positions, int64_t base, int64_t index) {
  return positions != nullptr ? positions[index] : base + index;
}

// Normalises and rotates heads [heads, d_k] of one token in place.
void PrepareHeads(const AttentionLayer::Impl& layer, const HeadNorm& norm, int64_t position,
                  int64_t heads, float* vectors);

// Copies heads of tokens [begin, end) to F32, [tokens, heads, size], tokens `stride` elements
// apart.
void GatherHeads(const HeadsView& view, int64_t begin, int64_t end, int64_t stride, float* target);

// Copies rows of x to F32, adding sinusoidal positions where the layer has them.
void GatherRows(const LayerSpec& spec, const RowsView& rows, int64_t begin, int64_t end,
                const int64_t* positions, int64_t position_base, bool add_positions, float* target);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_ATTENTION_LAYER_IMPL_H_
