#include "lib/cache/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/control_group.h"

namespace attnserve {
namespace {

constexpr int64_t kRestOfProcessBytes = int64_t{512} << 20;

// Version 1 has no word for "no limit": it shows the largest multiple of a page below 2^63.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 62;

int64_t PhysicalMemory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words.size() == 3 && words[0] == "MemTotal:" && words[2] == "kB" &&
        absl::SimpleAtoi(words[1], &kibibytes) && kibibytes > 0 &&
        kibibytes < kUnlimitedBytes / 1024) {
      return kibibytes * 1024;
    }
  }
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace

MemoryLimit ReadMemoryLimit(const std::string& root) {
  MemoryLimit least{PhysicalMemory(root), "physical memory"};
  for (const std::string& folder : ControlGroupFolders("memory", root)) {
    for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
      const std::string path = absl::StrCat(folder, "/", name);
      int64_t bytes = 0;  // "max" is no number
      if (!absl::SimpleAtoi(FirstLine(path), &bytes)) continue;
      if (bytes < 0 || bytes >= kUnlimitedBytes || bytes >= least.bytes) continue;
      least = {bytes, absl::StrCat("cgroup ", path)};
    }
  }
  return least;
}

int64_t DefaultKvBudget(int64_t limit_bytes, int64_t weight_bytes) {
  return std::max<int64_t>(
      0, std::min(limit_bytes / 2, limit_bytes - weight_bytes - kRestOfProcessBytes));
}

}  // namespace attnserve
