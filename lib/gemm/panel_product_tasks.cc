#include "lib/gemm/panel_product_tasks.h"

#include <algorithm>

namespace attnserve {
namespace {

// Rows that are packed and multiplied together: a reduction block of them stays in L2.
constexpr int64_t kTileRows = 192;

// Below either, a product takes less time than it takes to wake a sleeping thread (some 10 us).
constexpr int64_t kSmallMultiplications = 1 << 19;
constexpr int64_t kSmallWeightBytes = 1 << 18;

constexpr int64_t kPanelWidth = simd::kPanelWidth;

void AddBias(const float* bias, int64_t rows, int64_t column_begin, int64_t column_end,
             const ProductOutput& output) {
  for (int64_t row = 0; row < rows; ++row) {
    float* const y = output.y + row * output.stride;
    for (int64_t column = column_begin; column < column_end; ++column) y[column] += bias[column];
  }
}

bool IsSmall(const WeightPanels& weights, int64_t rows) {
  const int64_t elements = weights.multiplications(1);
  return elements * static_cast<int64_t>(ElementSize(weights.dtype)) <= kSmallWeightBytes &&
         elements * rows <= kSmallMultiplications;
}

// At most kRowsPerPass rows.
class Pass {
 public:
  Pass(const WeightPanels& weights, const ProductInput& input, const ProductOutput& output,
       float* packed)
      : weights_(weights),
        input_(input),
        output_(output),
        packed_(packed),
        tile_floats_(simd::PackedRowsFloats(kTileRows, weights.k)) {}

  int64_t tiles() const { return (input_.rows + kTileRows - 1) / kTileRows; }

  void Pack(int64_t tile) const {
    simd::PackRows(input_.x + tile * kTileRows * input_.stride, input_.stride, Rows(tile),
                   weights_.k, packed_ + static_cast<size_t>(tile) * tile_floats_);
  }

  void Multiply(int64_t tile, const TaskRange& panels) const {
    const int64_t rows = Rows(tile);
    const ProductOutput output{output_.y + tile * kTileRows * output_.stride, output_.stride};
    simd::PanelProduct(packed_ + static_cast<size_t>(tile) * tile_floats_, rows, weights_.k,
                       weights_.dtype, weights_.panels, panels.begin, panels.end, output.y,
                       output.stride);
    if (weights_.bias != nullptr) {
      AddBias(weights_.bias, rows, panels.begin * kPanelWidth, panels.end * kPanelWidth, output);
    }
  }

 private:
  int64_t Rows(int64_t tile) const { return std::min(kTileRows, input_.rows - tile * kTileRows); }

  const WeightPanels& weights_;
  ProductInput input_;
  ProductOutput output_;
  float* packed_;
  size_t tile_floats_;
};

}  // namespace

void MultiplyOnPanels(const WeightPanels& weights, const ProductInput& input,
                      const ProductOutput& output, ParallelRunner& runner,
                      GemmWorkspace& workspace) {
  for (int64_t first = 0; first < input.rows; first += kRowsPerPass) {
    const int64_t rows = std::min(kRowsPerPass, input.rows - first);
    float* const packed = workspace.rows.Reserve(simd::PackedRowsFloats(rows, weights.k));
    const Pass pass(weights, {input.x + first * input.stride, input.stride, rows},
                    {output.y + first * output.stride, output.stride}, packed);
    runner.Run(pass.tiles(), [&pass](int64_t tile, int) { pass.Pack(tile); });
    const int64_t parts = IsSmall(weights, rows)
                              ? 1
                              : PanelParts(weights.panel_count, pass.tiles(),
                                           weights.multiplications(rows), runner.worker_count());
    runner.Run(pass.tiles() * parts, [&](int64_t task, int) {
      pass.Multiply(task / parts, TaskRange(task % parts, parts, weights.panel_count));
    });
  }
}

}  // namespace attnserve
