#include "lib/gemm/onednn_matmul.h"

#include <dnnl.hpp>
#include <exception>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/mutex.h"
#include "lib/gemm/packed_matrix.h"
#include "lib/simd/panel_product.h"

extern "C" {
// Of the OpenMP runtime that oneDNN uses. The setting belongs to the calling thread.
void omp_set_num_threads(int count);
int omp_get_max_threads();
}

namespace attnserve {
namespace {

// oneDNN divides work by the calling thread's setting, at creation and at execution: one.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

// Never destroyed: primitives refer to it until the process ends.
const dnnl::engine& Cpu() {
  static const auto& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::desc Matrix(int64_t rows, int64_t columns, int64_t stride) {
  return {{rows, columns}, dnnl::memory::data_type::f32, dnnl::memory::dims{stride, 1}};
}

dnnl::matmul::primitive_desc Describe(const dnnl::memory::desc& x, const dnnl::memory::desc& w,
                                      const dnnl::memory::desc& y) {
  dnnl::primitive_attr attributes;
  // The library's own scratchpad belongs to the primitive: threads would overwrite each other's.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
#if DNNL_VERSION_MAJOR >= 3
  return {Cpu(), x, w, y, attributes};
#else
  return {dnnl::matmul::desc(x, w, y), attributes, Cpu()};
#endif
}

}  // namespace

struct OneDnnMatmul::Primitive {
  int64_t rows;
  dnnl::memory::desc x, w, y, scratchpad;
  dnnl::matmul matmul;
  std::string implementation;
};

struct OneDnnMatmul::Call::Bindings {
  OneThread one_thread;
  dnnl_primitive_t matmul;
  dnnl::stream stream;
  dnnl::memory x, w, y, scratchpad;
};

OneDnnMatmul::OneDnnMatmul(std::unique_ptr<const Primitive> primitive)
    : primitive_(std::move(primitive)) {}
OneDnnMatmul::~OneDnnMatmul() = default;

absl::StatusOr<const OneDnnMatmul*> OneDnnMatmul::Get(int64_t rows, int64_t k) {
  static auto& mutex = *new Mutex();
  static auto& made = *new std::map<std::pair<int64_t, int64_t>, const OneDnnMatmul*>();
  MutexLock lock(mutex);
  const OneDnnMatmul*& known = made[{rows, k}];
  if (known != nullptr) return known;
  try {
    const OneThread one_thread;
    auto primitive = std::make_unique<Primitive>();
    primitive->rows = rows;
    primitive->x = Matrix(rows, k, InputStride(k));
    primitive->w = Matrix(k, simd::kPanelWidth, simd::kPanelWidth);
    primitive->y = Matrix(rows, simd::kPanelWidth, simd::kPanelWidth);
    const dnnl::matmul::primitive_desc description =
        Describe(primitive->x, primitive->w, primitive->y);
    primitive->implementation = description.impl_info_str();
    if (absl::StartsWith(primitive->implementation, "ref")) {
      return KernelFailure(absl::StrCat("oneDNN has no fast product for ", rows, " rows of ", k,
                                        " (\"", primitive->implementation,
                                        "\"); use --gemm=native"));
    }
    primitive->scratchpad = description.scratchpad_desc();
    primitive->matmul = dnnl::matmul(description);
    known = new OneDnnMatmul(std::move(primitive));
  } catch (const std::exception& e) {
    return KernelFailure(absl::StrCat("oneDNN cannot make a product of ", rows, " rows of ", k,
                                      ": ", e.what(), "; use --gemm=native"));
  }
  return known;
}

int64_t OneDnnMatmul::rows() const { return primitive_->rows; }
size_t OneDnnMatmul::scratchpad_bytes() const { return primitive_->scratchpad.get_size(); }
const std::string& OneDnnMatmul::implementation() const { return primitive_->implementation; }

OneDnnMatmul::Call::Call(const OneDnnMatmul& matmul, const float* x, float* y, void* scratchpad) {
  const Primitive& primitive = *matmul.primitive_;
  try {
    bindings_.reset(new Bindings{{},
                                 primitive.matmul.get(),
                                 dnnl::stream(Cpu()),
                                 {primitive.x, Cpu(), const_cast<float*>(x)},
                                 {primitive.w, Cpu(), nullptr},
                                 {primitive.y, Cpu(), y},
                                 {primitive.scratchpad, Cpu(), scratchpad}});
  } catch (const std::exception& e) {
    error_ = e.what();
  }
}

OneDnnMatmul::Call::~Call() = default;

absl::Status OneDnnMatmul::Call::Run(const float* w) {
  if (bindings_ == nullptr) return KernelFailure(absl::StrCat("oneDNN: ", error_));
  try {
    bindings_->w.set_data_handle(const_cast<float*>(w));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, bindings_->x.get()},
                                         {DNNL_ARG_WEIGHTS, bindings_->w.get()},
                                         {DNNL_ARG_DST, bindings_->y.get()},
                                         {DNNL_ARG_SCRATCHPAD, bindings_->scratchpad.get()}};
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(bindings_->matmul, bindings_->stream.get(), 4, arguments),
        "could not execute a product");
  } catch (const std::exception& e) {
    return KernelFailure(absl::StrCat("oneDNN: ", e.what()));
  }
  return absl::OkStatus();
}

std::string OneDnnVersion() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrCat(version->major, ".", version->minor, ".", version->patch);
}

}  // namespace attnserve
