// Inside of AttentionLayer.
#ifndef ATTNSERVE_LIB_ATTENTION_ATTENTION_LAYER_IMPL_H_
#define ATTNSERVE_LIB_ATTENTION_ATTENTION_LAYER_IMPL_H_

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "lib/attention/attention_layer.h"
#include "lib/attention/positions.h"
#include "lib/attention/row_visibility.h"
#include "lib/base/aligned_buffer.h"
#include "lib/simd/attention.h"

namespace attnserve {

struct AttentionLayer::Impl {
  LayerSpec spec;
  std::unique_ptr<PackedMatrix> query, key_value, output;  // null: none
  std::optional<RotaryAngles> rotary;
  std::optional<Sinusoids> sinusoids;
  float scale = 1.0f;

  std::array<const PackedMatrix*, 3> matrices() const {
    return {query.get(), key_value.get(), output.get()};
  }
  bool is_core() const { return spec.kind == LayerKind::kCoreAttention; }
  bool is_cross() const { return spec.kind == LayerKind::kCrossAttention; }
};

// Memory of one worker, reserved before tasks run: tasks must not throw.
struct AttendMemory {
  AlignedBuffer<float> floats;  // what the next pointers point into: together in few pages
  float* partial = nullptr;     // of one stretch, [rows, PartialFloats]
  float* total = nullptr;       // of the stretches so far
  float* scratch = nullptr;
  float* queries = nullptr;      // packed, of `rows`
  float* context = nullptr;      // one row's, [d_v]
  AlignedBuffer<uint64_t> bits;  // [mask rows, blocks]
  AlignedBuffer<float> bias;     // [mask rows, blocks * 64]
  AlignedBuffer<uint64_t> keep;  // [rows, blocks]
  AlignedBuffer<float> scores;   // [blocks * 64], for stages
  std::vector<simd::AttentionRow> rows;
};

// A few rows of one pass, for work that is done row by row.
struct RowChunk {
  LayerPass* pass = nullptr;
  int64_t begin = 0;  // of the pass
  int64_t end = 0;
  int64_t row = 0;               // row of the joined matrices that `begin` has
  int64_t nonfinite_values = 0;  // among its outputs
};

// Some queries of one pass, with all heads of one key/value head.
struct AttendTask {
  LayerPass* pass = nullptr;
  int64_t kv_head = 0;
  int64_t query_begin = 0;  // of the pass
  int64_t query_end = 0;
  int64_t first_row = 0;      // row of `queries` and `contexts` that query_begin has
  int64_t stretch_begin = 0;  // stretches that the queries may reach
  int64_t stretch_end = 0;
  // Where its stretches are shared out: its first job, and the first of its results in `partials`.
  int64_t first_job = -1;  // -1: one worker does it all
  int64_t first_partial = 0;
  int64_t nonfinite_values = 0;  // among the outputs it wrote

  int64_t stretches() const { return stretch_end - stretch_begin; }
};

// What one worker does at a time: a task, or one of its stretches.
struct AttendJob {
  int64_t task = 0;
  int64_t stretch = -1;  // -1: all
};

struct LayerWorkspace::Impl {
  AlignedBuffer<float> x;         // gathered inputs, unless one caller's lie as they should
  AlignedBuffer<float> keys;      // [rows, keys | values]
  AlignedBuffer<float> queries;   // [rows, H * d_k], but those that are taken as given
  AlignedBuffer<float> contexts;  // [rows, H * d_v], where they are kept: see AttendCore
  AlignedBuffer<float> outputs;   // [rows, padded d_out]
  AlignedBuffer<float> lse;       // [rows, H]
  AlignedBuffer<float> partials;  // of split tasks: [stretch of the task][row of the task]
  std::vector<uint8_t> seen;      // [jobs] whether any row sees any key of the job's stretch
  std::vector<RowChunk> chunks;
  int64_t row_count = 0;  // of all ranges
  std::vector<AttendTask> tasks;
  std::vector<AttendJob> jobs;
  std::vector<int64_t> split_tasks;  // whose stretches are shared out
  std::vector<AttendMemory> workers;
  std::unique_ptr<GemmWorkspace, void (*)(GemmWorkspace*)> gemm = MakeGemmWorkspace();
};

// Runs tasks of `operations` multiplications or copied elements in all; on this thread alone where
// that takes less time than waking another (some 10 us).
inline void RunTasks(ParallelRunner& runner, int64_t task_count, int64_t operations,
                     absl::FunctionRef<void(int64_t task, int worker)> body) {
  constexpr int64_t kSmallOperations = 1 << 16;
  if (operations > kSmallOperations) return runner.Run(task_count, body);
  for (int64_t task = 0; task < task_count; ++task) body(task, 0);
}

// Cuts the ranges into chunks, for which rows are joined one after the other. `width` is the most
// elements that are touched for a row.
void MakeChunks(absl::Span<const PassRows> ranges, int64_t width, LayerWorkspace::Impl* workspace);

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

// Whether elements are floats that can be read where they lie: tensors of a message may lie at any
// address.
inline bool AreFloats(DType dtype, const void* data) {
  return dtype == DType::kF32 && reinterpret_cast<uintptr_t>(data) % alignof(float) == 0;
}

// Whether queries are attended where the caller has them, without a copy.
inline bool TakesQueriesAsGiven(const AttentionLayer::Impl& layer, const LayerPass& pass) {
  return layer.is_core() && AreFloats(pass.query.dtype, pass.query.data) &&
         layer.spec.attention.query_norm.kind == HeadNorm::Kind::kNone && !layer.rotary.has_value();
}

// Where `piece` of the output of a query begins.
char* OutputAddress(const OutputTarget& output, int64_t query, int64_t piece);

// Writes `piece` of the output of a query, rounded to the output's type; zeros for padding. Returns
// how many of its elements are NaN or infinite.
int64_t WriteOutput(const LayerPass& pass, int64_t query, int64_t piece, const float* values,
                    int64_t count);

// What a projection reads of a pass: rows, and what is added to them for their positions.
struct ProjectionInput {
  const RowsView& rows;
  const Sinusoids* sinusoids;  // null: nothing
  const int64_t* positions;
  int64_t position_base;
};

// The inputs of all chunks, [rows, width]: where they lie, if one range of floats is all, else
// gathered into work.x.
const float* ProjectionInputs(absl::Span<const PassRows> ranges, int64_t width,
                              absl::FunctionRef<ProjectionInput(const LayerPass&)> input_of,
                              ParallelRunner& runner, LayerWorkspace::Impl& work);

// The attention function of one call of Attend, between the projections.
class AttendCore {
 public:
  // `queries` has rows of query_stride elements. Reserves all memory that Run and WriteStages need.
  AttendCore(const AttentionLayer::Impl& layer, absl::Span<const PassRows> ranges,
             int64_t query_stride, ParallelRunner& runner, LayerWorkspace::Impl& workspace);

  // From `queries` to `lse`, and to `contexts` or, in a layer without output projection, to the
  // passes' outputs.
  void Run();
  // Adds what is to be counted to the passes.
  void Count();
  // Writes the stages that passes ask for (stage_outputs.cc).
  void WriteStages();

 private:
  // Most elements that one task needs of each buffer of AttendMemory.
  struct Needs {
    int64_t rows = 0;
    int64_t bits = 0;
    int64_t bias = 0;
    int64_t keep = 0;
    int64_t scores = 0;
  };

  // attend_plan.cc
  void MakeTasks();
  void MakeJobs();
  void ReserveWorkers();
  void AddNeeds(const LayerPass& pass, int64_t queries);
  int64_t Rows(const AttendTask& task) const;
  int64_t Work(const AttendTask& task) const;

  simd::AttentionParams Params(const LayerPass& pass) const;
  // Query `query` of a pass, which has row `row` of `queries` unless it is taken as given.
  const float* Query(const LayerPass& pass, int64_t query, int64_t row, int64_t head) const;
  void PrepareRows(const AttendTask& task, AttendMemory& memory) const;
  void FillMasks(const AttendTask& task, BlockRange range, AttendMemory& memory) const;
  bool AttendOneStretch(const AttendTask& task, AttendMemory& memory, int64_t stretch,
                        float* partials) const;
  void AttendWhole(AttendTask& task, AttendMemory& memory);
  void MergeStretches(AttendTask& task, AttendMemory& memory);
  void FinishTask(AttendTask& task, const float* totals, AttendMemory& memory);
  void WriteRowStages(const LayerPass& pass, int64_t query, int64_t row, int64_t head,
                      AttendMemory& memory) const;

  const AttentionLayer::Impl& layer_;
  const LayerSpec& spec_;
  absl::Span<const PassRows> ranges_;
  int64_t query_stride_;
  ParallelRunner& runner_;
  LayerWorkspace::Impl& workspace_;
  int64_t partial_floats_;  // of one row
  bool keeps_contexts_;     // for the output projection or for stages; else written at once
  int64_t operations_ = 0;  // multiplications of the whole call
  Needs needs_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_ATTENTION_LAYER_IMPL_H_
