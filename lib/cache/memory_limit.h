// How much memory the caches may use.
#ifndef ATTNSERVE_LIB_CACHE_MEMORY_LIMIT_H_
#define ATTNSERVE_LIB_CACHE_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace attnserve {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;  // for people: "cgroup /sys/fs/cgroup/.../memory.max", "physical memory"
};

// The least of physical memory and the limit of every control group (v1 and v2) this process is in,
// ancestors included. `root` stands before /proc and /sys, for tests.
MemoryLimit ReadMemoryLimit(const std::string& root = "");

// Default cache budget: min(limit / 2, limit - weight_bytes - 512 MiB), at least 0. Half leaves
// room for weights, messages and the rest of the process.
int64_t DefaultKvBudget(int64_t limit_bytes, int64_t weight_bytes);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_CACHE_MEMORY_LIMIT_H_
