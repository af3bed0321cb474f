#include "lib/gemm/packed_matrix.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <new>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/aligned_buffer.h"
#include "lib/base/errors.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"
#include "lib/gemm/gemm_workspace.h"
#include "lib/gemm/onednn_product.h"
#include "lib/gemm/panel_product_tasks.h"
#include "lib/gemm/weight_panels.h"

namespace attnserve {
namespace {

// Rows from which products run on oneDNN: fewer cost it up to 2.5 times our kernel's time, which
// reads the weights at memory speed.
constexpr int64_t kOneDnnRows = 96;

// K * N at most, so that no size overflows.
constexpr int64_t kMaxElements = int64_t{1} << 40;

std::atomic<bool> onednn_differs{false};

absl::Status Check(absl::Span<const WeightView> columns, absl::Span<const float> bias) {
  if (columns.empty()) return BadShape("weights", "there is no weight matrix");
  const int64_t in = columns.front().in;
  int64_t out = 0;
  for (const WeightView& view : columns) {
    if (!IsFloat(view.dtype)) return BadDType("weights", "weights must be F32, F16 or BF16");
    if (view.in < 1 || view.out < 1 || view.in > kMaxElements || view.out > kMaxElements) {
      return BadShape("weights", absl::StrCat("a weight matrix is ", view.in, " x ", view.out,
                                              ", sizes must be at least 1 and below 2^40"));
    }
    if (view.in != in) {
      return BadShape("weights", absl::StrCat("joined weight matrices take ", in, " and ", view.in,
                                              " inputs, they must take the same"));
    }
    out += view.out;
    if (out > kMaxElements / in) {
      return BadShape("weights",
                      absl::StrCat("a weight matrix of ", in, " x ", out, " is too large"));
    }
  }
  if (!bias.empty() && static_cast<int64_t>(bias.size()) != out) {
    return BadShape("bias", absl::StrCat("the bias has ", bias.size(), " elements, expected ", out,
                                         ", one for each output"));
  }
  return absl::OkStatus();
}

absl::Status OutOfMemory() { return KernelFailure("no memory for a matrix product"); }

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Panels to time products with: many, since either packs or copies its rows once for all.
constexpr int64_t kTimedPanels = 48;

// Times both on a tile of rows and the first panels, alternately, and compares the best times.
absl::StatusOr<bool> TimeOneDnn(const OneDnnProduct& product, const WeightPanels& weights) {
  constexpr int64_t kRows = OneDnnMatmul::kMostRows;
  constexpr int kRepeats = 5;
  constexpr double kAdvantage = 0.95;  // less than that may be noise
  WeightPanels some = weights;
  some.panel_count = std::min(kTimedPanels, weights.panel_count);
  const int64_t columns = some.panel_count * simd::kPanelWidth;
  AlignedBuffer<float> x(static_cast<size_t>(kRows * some.k));
  AlignedBuffer<float> y(static_cast<size_t>(kRows * columns));
  std::fill_n(x.data(), kRows * some.k, 1.0f);
  const ProductInput input{x.data(), some.k, kRows};
  const ProductOutput output{y.data(), columns};
  InlineRunner runner;
  GemmWorkspace workspace;
  double panels_seconds = 1e30, onednn_seconds = 1e30;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    MultiplyOnPanels(some, input, output, runner, workspace);
    panels_seconds = std::min(panels_seconds, SecondsSince(start));
    const auto middle = std::chrono::steady_clock::now();
    ATTNSERVE_RETURN_IF_ERROR(product.Multiply(some, input, output, runner, workspace));
    onednn_seconds = std::min(onednn_seconds, SecondsSince(middle));
  }
  return onednn_seconds < panels_seconds * kAdvantage;
}

// Whether oneDNN is the faster, timed with the first matrix of this K, type and, as far as it
// matters, number of columns that a process has.
absl::StatusOr<bool> OneDnnIsFaster(const OneDnnProduct& product, const WeightPanels& weights) {
  static auto& mutex = *new Mutex();
  static auto& known = *new std::map<std::tuple<int64_t, int64_t, DType>, bool>();
  MutexLock lock(mutex);
  const std::tuple key(weights.k, std::min(kTimedPanels, weights.panel_count), weights.dtype);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  ATTNSERVE_ASSIGN_OR_RETURN(const bool faster, TimeOneDnn(product, weights));
  return known[key] = faster;
}

}  // namespace

std::unique_ptr<GemmWorkspace, void (*)(GemmWorkspace*)> MakeGemmWorkspace() {
  return {new GemmWorkspace, [](GemmWorkspace* workspace) { delete workspace; }};
}

struct PackedMatrix::Impl {
  void Pack(absl::Span<const WeightView> columns, absl::Span<const float> bias_values);

  int64_t out = 0;
  AlignedBuffer<char> panels;
  AlignedBuffer<float> bias;
  WeightPanels weights;                   // refers to `panels` and `bias`
  const OneDnnProduct* onednn = nullptr;  // null: every product runs on the panel kernel
};

void PackedMatrix::Impl::Pack(absl::Span<const WeightView> columns,
                              absl::Span<const float> bias_values) {
  weights.k = columns.front().in;
  weights.dtype = columns.front().dtype;
  for (const WeightView& view : columns) {
    out += view.out;
    if (view.dtype != weights.dtype) weights.dtype = DType::kF32;
  }
  weights.panel_count = simd::PanelCount(out);
  const size_t padded = static_cast<size_t>(weights.panel_count * simd::kPanelWidth);
  const size_t bytes = padded * static_cast<size_t>(weights.k) * ElementSize(weights.dtype);
  std::fill_n(panels.Reserve(bytes), bytes, '\0');
  weights.panels = panels.data();
  int64_t column = 0;
  for (const WeightView& view : columns) {
    const int64_t column_bytes = view.out_stride * static_cast<int64_t>(ElementSize(view.dtype));
    for (int64_t i = 0; i < view.out; ++i, ++column) {
      simd::PackColumn(view.dtype, static_cast<const char*>(view.data) + i * column_bytes,
                       view.in_stride, view.in, column, weights.dtype, panels.data());
    }
  }
  if (bias_values.empty()) return;
  float* const end = std::copy(bias_values.begin(), bias_values.end(), bias.Reserve(padded));
  std::fill(end, bias.data() + padded, 0.0f);
  weights.bias = bias.data();
}

PackedMatrix::PackedMatrix(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PackedMatrix::~PackedMatrix() = default;

absl::StatusOr<std::unique_ptr<PackedMatrix>> PackedMatrix::Create(
    absl::Span<const WeightView> columns, absl::Span<const float> bias, GemmBackend backend) try {
  ATTNSERVE_RETURN_IF_ERROR(Check(columns, bias));
  auto impl = std::make_unique<Impl>();
  impl->Pack(columns, bias);
  if (backend != GemmBackend::kNative) {
    ATTNSERVE_ASSIGN_OR_RETURN(const OneDnnProduct* product, OneDnnProduct::Get(impl->weights.k));
    bool use = true;
    if (backend == GemmBackend::kAuto) {
      use = product->matches_panels();
      if (use) {
        ATTNSERVE_ASSIGN_OR_RETURN(use, OneDnnIsFaster(*product, impl->weights));
      }
    }
    if (use) {
      impl->onednn = product;
      if (!product->matches_panels()) onednn_differs = true;
    }
  }
  return std::unique_ptr<PackedMatrix>(new PackedMatrix(std::move(impl)));
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

absl::Status PackedMatrix::Multiply(const float* x, int64_t x_stride, int64_t rows, float* y,
                                    int64_t y_stride, ParallelRunner& runner,
                                    GemmWorkspace& workspace) const try {
  const ProductInput input{x, x_stride, rows};
  const ProductOutput output{y, y_stride};
  if (impl_->onednn != nullptr && rows >= kOneDnnRows) {
    return impl_->onednn->Multiply(impl_->weights, input, output, runner, workspace);
  }
  MultiplyOnPanels(impl_->weights, input, output, runner, workspace);
  return absl::OkStatus();
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

int64_t PackedMatrix::in() const { return impl_->weights.k; }
int64_t PackedMatrix::out() const { return impl_->out; }
DType PackedMatrix::dtype() const { return impl_->weights.dtype; }

int64_t PackedMatrix::PaddedColumns() const {
  return impl_->weights.panel_count * simd::kPanelWidth;
}

int64_t PackedMatrix::bytes() const {
  return static_cast<int64_t>(impl_->panels.capacity() + impl_->bias.capacity() * sizeof(float));
}

bool PackedMatrix::uses_onednn() const { return impl_->onednn != nullptr; }

std::string PackedMatrix::implementation() const {
  return uses_onednn() ? impl_->onednn->implementation() : "native";
}

bool OneDnnMatchesPanels() { return !onednn_differs; }

std::string GemmNumerics() { return OneDnnMatchesPanels() ? "native" : "onednn"; }

}  // namespace attnserve
