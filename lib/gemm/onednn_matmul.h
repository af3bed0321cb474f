// oneDNN's matmul at the few fixed shapes we use; the only place that knows its API, version 2
// or 3.
#ifndef ATTNSERVE_LIB_GEMM_ONEDNN_MATMUL_H_
#define ATTNSERVE_LIB_GEMM_ONEDNN_MATMUL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attnserve {

// y [rows, 16] = x [rows, K] w [K, 16], F32, run on the calling thread alone. x has rows of
// InputStride(K) elements, w and y are without gaps. Immutable: calls may run in many threads.
class OneDnnMatmul {
 public:
  // Row counts there are primitives for. oneDNN's AVX2 code gives a row the bits of our panel
  // kernel where it needs no edge kernel (rows modulo 6 of 1 to 3), so calls are padded to these;
  // the larger two reach full speed.
  static constexpr int64_t kRowCounts[] = {192, 96, 48, 24};
  static constexpr int64_t kMostRows = kRowCounts[0];
  static constexpr int64_t kLeastRows = kRowCounts[3];

  // Distance of rows of x: whole cache lines, but an odd number of them, because rows a power of
  // two apart fall into the same cache sets and halve the speed.
  static constexpr int64_t InputStride(int64_t k) { return ((k + 15) / 16 | 1) * 16; }

  // The primitive for (rows, K), made at the first call and kept as long as the process lives.
  // KERNEL_FAILURE if oneDNN cannot make it or would fall back to its reference code, which is a
  // thousand times slower.
  static absl::StatusOr<const OneDnnMatmul*> Get(int64_t rows, int64_t k);

  int64_t rows() const;
  size_t scratchpad_bytes() const;
  const std::string& implementation() const;  // for example "gemm:jit"

  // Products of one x with several w, one after the other, on the thread that made it.
  class Call {
   public:
    // Pointers are aligned to 64 bytes and outlive the call. `scratchpad` has scratchpad_bytes()
    // and no other user meanwhile.
    Call(const OneDnnMatmul& matmul, const float* x, float* y, void* scratchpad);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // y = x w. KERNEL_FAILURE if oneDNN reports an error.
    absl::Status Run(const float* w);

   private:
    struct Bindings;
    std::unique_ptr<Bindings> bindings_;  // null where oneDNN could not make them
    std::string error_;
  };

 private:
  struct Primitive;
  explicit OneDnnMatmul(std::unique_ptr<const Primitive> primitive);
  ~OneDnnMatmul();
  std::unique_ptr<const Primitive> primitive_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_GEMM_ONEDNN_MATMUL_H_
