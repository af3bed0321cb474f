#include "lib/gemm/onednn_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"
#include "lib/gemm/panel_product_tasks.h"

namespace attnserve {
namespace {

constexpr int64_t kPanelWidth = simd::kPanelWidth;
constexpr int64_t kSliceRows = OneDnnMatmul::kLeastRows;

// Rows [slice * kSliceRows, ...) of x, zeros beyond its end.
void CopySlice(const ProductInput& input, int64_t k, int64_t slice, float* target) {
  const int64_t stride = OneDnnMatmul::InputStride(k);
  for (int64_t row = slice * kSliceRows; row < (slice + 1) * kSliceRows; ++row) {
    float* const to = target + row * stride;
    if (row < input.rows) {
      std::memcpy(to, input.x + row * input.stride, static_cast<size_t>(k) * sizeof(float));
    } else {
      std::fill_n(to, k, 0.0f);
    }
  }
}

// Copies the columns of a panel to their place and adds the bias.
void StorePanel(const float* product, int64_t rows, const float* bias, float* y, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* const from = product + row * kPanelWidth;
    float* const to = y + row * stride;
    if (bias == nullptr) {
      std::copy_n(from, kPanelWidth, to);
    } else {
      for (int64_t c = 0; c < kPanelWidth; ++c) to[c] = from[c] + bias[c];
    }
  }
}

// Numbers of magnitudes 2^-4 to 1 whose sums round at nearly every step, so that another order
// shows.
class Numbers {
 public:
  void Fill(float* target, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      state_ = state_ * 1664525u + 1013904223u;  // Numerical Recipes, "quick and dirty" generator
      const float fraction = static_cast<float>(state_ >> 8) * 0x1p-23f - 1.0f;
      target[i] = std::ldexp(fraction, -static_cast<int>(state_ >> 29) % 5);
    }
  }

 private:
  uint32_t state_ = 1;
};

}  // namespace

absl::StatusOr<const OneDnnProduct*> OneDnnProduct::Get(int64_t k) {
  static auto& mutex = *new Mutex();
  static auto& made = *new std::map<int64_t, std::unique_ptr<const OneDnnProduct>>();
  MutexLock lock(mutex);
  if (const auto known = made.find(k); known != made.end()) return known->second.get();
  std::unique_ptr<OneDnnProduct> product(new OneDnnProduct());
  product->k_ = k;
  for (size_t i = 0; i < product->matmuls_.size(); ++i) {
    ATTNSERVE_ASSIGN_OR_RETURN(product->matmuls_[i],
                               OneDnnMatmul::Get(OneDnnMatmul::kRowCounts[i], k));
  }
  ATTNSERVE_RETURN_IF_ERROR(product->CompareWithPanels());
  return (made[k] = std::move(product)).get();
}

absl::Status OneDnnProduct::CompareWithPanels() {
  AlignedBuffer<float> panel(static_cast<size_t>(k_ * kPanelWidth));
  AlignedBuffer<float> x(static_cast<size_t>(OneDnnMatmul::kMostRows * k_));
  AlignedBuffer<float> y(OneDnnMatmul::kMostRows * kPanelWidth);
  AlignedBuffer<float> expected(OneDnnMatmul::kMostRows * kPanelWidth);
  Numbers numbers;
  numbers.Fill(panel.data(), k_ * kPanelWidth);
  WeightPanels weights;
  weights.k = k_;
  weights.panel_count = 1;
  weights.panels = panel.data();
  InlineRunner runner;
  GemmWorkspace workspace;
  for (const OneDnnMatmul* matmul : matmuls_) {
    const int64_t rows = matmul->rows();
    numbers.Fill(x.data(), rows * k_);
    MultiplyOnPanels(weights, {x.data(), k_, rows}, {expected.data(), kPanelWidth}, runner,
                     workspace);
    ATTNSERVE_RETURN_IF_ERROR(
        Multiply(weights, {x.data(), k_, rows}, {y.data(), kPanelWidth}, runner, workspace));
    const size_t bytes = static_cast<size_t>(rows * kPanelWidth) * sizeof(float);
    matches_panels_ = matches_panels_ && std::memcmp(y.data(), expected.data(), bytes) == 0;
  }
  return absl::OkStatus();
}

void OneDnnProduct::CutIntoTiles(int64_t rows, GemmWorkspace& workspace) const {
  workspace.tiles.clear();
  int64_t first = 0;
  for (const OneDnnMatmul* matmul : matmuls_) {
    const int64_t least = matmul == matmuls_.back() ? 1 : matmul->rows();
    for (; rows - first >= least; first += matmul->rows())
      workspace.tiles.push_back({first, matmul});
  }
}

absl::Status OneDnnProduct::Multiply(const WeightPanels& weights, const ProductInput& input,
                                     const ProductOutput& output, ParallelRunner& runner,
                                     GemmWorkspace& workspace) const {
  const size_t workers = static_cast<size_t>(runner.worker_count());
  if (workspace.workers.size() < workers) workspace.workers.resize(workers);
  size_t scratchpad_bytes = kKernelAlignment;
  for (const OneDnnMatmul* matmul : matmuls_) {
    scratchpad_bytes = std::max(scratchpad_bytes, matmul->scratchpad_bytes());
  }
  for (GemmWorkspace::Worker& worker : workspace.workers) {
    worker.status = absl::OkStatus();
    worker.product.Reserve(OneDnnMatmul::kMostRows * kPanelWidth);
    worker.scratchpad.Reserve(scratchpad_bytes);
    if (weights.dtype != DType::kF32) {
      worker.panel.Reserve(static_cast<size_t>(k_ * kPanelWidth));
    }
  }
  for (int64_t first = 0; first < input.rows; first += kRowsPerPass) {
    const int64_t rows = std::min(kRowsPerPass, input.rows - first);
    ATTNSERVE_RETURN_IF_ERROR(
        MultiplyPass(weights, {input.x + first * input.stride, input.stride, rows},
                     {output.y + first * output.stride, output.stride}, runner, workspace));
  }
  return absl::OkStatus();
}

absl::Status OneDnnProduct::MultiplyPass(const WeightPanels& weights, const ProductInput& input,
                                         const ProductOutput& output, ParallelRunner& runner,
                                         GemmWorkspace& workspace) const {
  CutIntoTiles(input.rows, workspace);
  const int64_t stride = OneDnnMatmul::InputStride(k_);
  const int64_t slices = (input.rows + kSliceRows - 1) / kSliceRows;
  float* const x = workspace.rows.Reserve(static_cast<size_t>(slices * kSliceRows * stride));
  runner.Run(slices, [&](int64_t slice, int) { CopySlice(input, k_, slice, x); });

  const int64_t tiles = static_cast<int64_t>(workspace.tiles.size());
  const int64_t parts = PanelParts(weights.panel_count, tiles, weights.multiplications(input.rows),
                                   runner.worker_count());
  runner.Run(tiles * parts, [&](int64_t task, int worker_index) {
    const GemmWorkspace::Tile& tile = workspace.tiles[static_cast<size_t>(task / parts)];
    const int64_t rows = std::min(tile.matmul->rows(), input.rows - tile.first_row);
    GemmWorkspace::Worker& worker = workspace.workers[static_cast<size_t>(worker_index)];
    OneDnnMatmul::Call call(*tile.matmul, x + tile.first_row * stride, worker.product.data(),
                            worker.scratchpad.data());
    const TaskRange panels(task % parts, parts, weights.panel_count);
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      const float* w = static_cast<const float*>(weights.panels) + panel * k_ * kPanelWidth;
      if (weights.dtype != DType::kF32) {
        simd::WidenPanels(weights.dtype, weights.panels, k_, panel, panel + 1, worker.panel.data());
        w = worker.panel.data();
      }
      worker.status.Update(call.Run(w));
      const int64_t column = panel * kPanelWidth;
      StorePanel(worker.product.data(), rows,
                 weights.bias == nullptr ? nullptr : weights.bias + column,
                 output.y + tile.first_row * output.stride + column, output.stride);
    }
  });
  for (const GemmWorkspace::Worker& worker : workspace.workers) {
    ATTNSERVE_RETURN_IF_ERROR(worker.status);
  }
  return absl::OkStatus();
}

}  // namespace attnserve
