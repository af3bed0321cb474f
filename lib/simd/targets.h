// Which of Highway's targets the kernels are compiled for. Included before any header of Highway.
//
// Kernels work on 16 lanes held in 16 / N vectors of N lanes, so N must divide 16 and be known to
// the compiler: scalable vectors are left out. So are targets that differ from another one only in
// instructions the kernels do not use.
#ifndef ATTNSERVE_LIB_SIMD_TARGETS_H_
#define ATTNSERVE_LIB_SIMD_TARGETS_H_

#define HWY_DISABLED_TARGETS                                                               \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_NEON_BF16 | HWY_SSSE3 | \
   HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR)
#include "hwy/detect_targets.h"

// Targets that older versions of Highway do not know.
#ifndef HWY_NEON_BF16
#define HWY_NEON_BF16 0
#endif
#ifndef HWY_AVX3_ZEN4
#define HWY_AVX3_ZEN4 0
#endif
#ifndef HWY_AVX3_SPR
#define HWY_AVX3_SPR 0
#endif

#endif  // ATTNSERVE_LIB_SIMD_TARGETS_H_
