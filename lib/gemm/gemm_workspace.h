// Memory products work in.
#ifndef ATTNSERVE_LIB_GEMM_GEMM_WORKSPACE_H_
#define ATTNSERVE_LIB_GEMM_GEMM_WORKSPACE_H_

#include <vector>

#include "absl/status/status.h"
#include "lib/base/aligned_buffer.h"
#include "lib/gemm/onednn_matmul.h"

namespace attnserve {

// Everything is reserved before tasks begin: tasks allocate nothing here.
class GemmWorkspace {
 public:
  struct Worker {
    AlignedBuffer<float> panel;    // [K, 16] one panel of 16-bit weights as F32
    AlignedBuffer<float> product;  // [rows of a tile, 16]
    AlignedBuffer<char> scratchpad;
    absl::Status status;  // the first error of a task
  };
  struct Tile {
    int64_t first_row;
    const OneDnnMatmul* matmul;
  };

  AlignedBuffer<float> rows;  // x, packed for the panel kernel or copied for oneDNN
  std::vector<Worker> workers;
  std::vector<Tile> tiles;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_GEMM_GEMM_WORKSPACE_H_
