#include "lib/cache/memory_limit.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/control_group.h"

namespace attnserve {
namespace {

// MemTotal of /proc/meminfo, in bytes; 0 if it cannot be read.
int64_t PhysicalMemory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words.size() >= 2 && words[0] == "MemTotal:" && absl::SimpleAtoi(words[1], &kibibytes)) {
      return kibibytes * 1024;
    }
  }
  return 0;
}

}  // namespace

MemoryLimit ReadMemoryLimit(const std::string& root) {
  MemoryLimit limit{PhysicalMemory(root), "physical memory"};
  for (const std::string& folder : ControlGroupFolders("memory", root)) {
    for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
      const std::string path = absl::StrCat(folder, "/", name);
      int64_t bytes = 0;
      // "max" is no number; version 1 says "unlimited" by a number beyond physical memory.
      if (!absl::SimpleAtoi(FirstLine(path), &bytes)) continue;
      if (limit.bytes == 0 || bytes < limit.bytes) limit = {bytes, "control group " + path};
    }
  }
  return limit;
}

int64_t DefaultKvBudget(int64_t limit_bytes, int64_t weight_bytes) {
  constexpr int64_t kRestOfProcess = int64_t{512} << 20;
  return std::max<int64_t>(0,
                           std::min(limit_bytes / 2, limit_bytes - weight_bytes - kRestOfProcess));
}

}  // namespace attnserve
