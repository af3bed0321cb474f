// Metrics read when they are asked for.
#ifndef ATTNSERVE_SERVER_ENGINE_GAUGES_H_
#define ATTNSERVE_SERVER_ENGINE_GAUGES_H_

#include <vector>

#include "lib/engine/engine.h"
#include "prometheus/metric_family.h"

namespace attnserve {

// Sessions, queue and memory by class. The classes of attnserve_kv_bytes do not overlap:
//   blocks     cache blocks of sessions
//   promised   charged to the budget beyond them: kept replies and reservations
//   slab_free  held from the system, in no block
//   scratch    blocks of stateless calls in flight
// `blocks` and `promised` together are what counts against attnserve_kv_budget_bytes.
void AddEngineGauges(const EngineStats& stats, std::vector<prometheus::MetricFamily>* families);

// process_resident_memory_bytes.
void AddProcessGauges(std::vector<prometheus::MetricFamily>* families);

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_ENGINE_GAUGES_H_
