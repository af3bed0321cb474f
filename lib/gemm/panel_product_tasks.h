// Products on our panel kernel, shared out to workers.
#ifndef ATTNSERVE_LIB_GEMM_PANEL_PRODUCT_TASKS_H_
#define ATTNSERVE_LIB_GEMM_PANEL_PRODUCT_TASKS_H_

#include "lib/base/parallel.h"
#include "lib/gemm/gemm_workspace.h"
#include "lib/gemm/weight_panels.h"

namespace attnserve {

// y = x W + bias. Products too small to be worth waking a thread run on the calling one.
void MultiplyOnPanels(const WeightPanels& weights, const ProductInput& input,
                      const ProductOutput& output, ParallelRunner& runner,
                      GemmWorkspace& workspace);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_GEMM_PANEL_PRODUCT_TASKS_H_
