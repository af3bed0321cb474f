#include "server/engine_gauges.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

namespace attnserve {
namespace {

prometheus::MetricFamily Family(const char* name, const char* help) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Gauge;
  return family;
}

prometheus::ClientMetric Value(int64_t value) {
  prometheus::ClientMetric metric;
  metric.gauge.value = static_cast<double>(value);
  return metric;
}

}  // namespace

void AddEngineGauges(const EngineStats& stats, std::vector<prometheus::MetricFamily>* families) {
  const auto add = [families](const char* name, const char* help, int64_t value) {
    families->push_back(Family(name, help));
    families->back().metric.push_back(Value(value));
  };
  add("attnserve_sessions", "Sessions by state", stats.session_count);
  families->back().metric.back().label = {{"state", "live"}};
  add("attnserve_queued_calls", "Calls that wait for their turn", stats.queued_calls);
  add("attnserve_queued_bytes", "Bytes of their requests", stats.queued_bytes);
  add("attnserve_kv_budget_bytes", "Memory that caches may use", stats.kv_budget_bytes);
  families->push_back(Family("attnserve_kv_bytes", "Memory of caches, by what holds it"));
  const std::pair<const char*, int64_t> classes[] = {
      {"blocks", stats.kv_block_bytes},
      {"promised", stats.kv_charged_bytes - stats.kv_block_bytes},
      {"slab_free", stats.kv_slab_free_bytes},
      {"scratch", stats.scratch_bytes},
  };
  for (const auto& [name, bytes] : classes) {
    prometheus::ClientMetric metric = Value(bytes);
    metric.label = {{"class", name}};
    families->back().metric.push_back(std::move(metric));
  }
}

void AddProcessGauges(std::vector<prometheus::MetricFamily>* families) {
  std::ifstream statm("/proc/self/statm");
  int64_t size_pages = 0;
  int64_t resident_pages = 0;
  if (!(statm >> size_pages >> resident_pages)) return;
  families->push_back(Family("process_resident_memory_bytes", "Resident memory of the process"));
  families->back().metric.push_back(Value(resident_pages * sysconf(_SC_PAGESIZE)));
}

}  // namespace attnserve
