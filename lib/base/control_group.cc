#include "lib/base/control_group.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace attnserve {
namespace {

// One control-group mount of this process.
struct Mount {
  std::string folder;  // where the hierarchy is mounted
  std::string group;   // which group its top shows, "/" outside of containers
  bool version2 = false;
  std::string controllers;  // version 1: comma-separated
};

// Lines of /proc/self/mountinfo: id parent device group folder options [tags] - type source
// options.
std::vector<Mount> Mounts(const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<std::string> left = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> right = absl::StrSplit(halves[1], ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    if (right[0] != "cgroup" && right[0] != "cgroup2") continue;
    mounts.push_back({root + left[4], left[3], right[0] == "cgroup2", right[2]});
  }
  return mounts;
}

bool Names(const std::string& list, std::string_view controller) {
  const std::vector<std::string> names = absl::StrSplit(list, ',');
  return std::find(names.begin(), names.end(), std::string(controller)) != names.end();
}

// `group` as seen below `mount`, and its ancestors up to the mount's own folder.
void AddFolders(const Mount& mount, std::string group, std::vector<std::string>* folders) {
  if (mount.group != "/" && absl::StartsWith(group, mount.group)) {
    group = group.substr(mount.group.size());
  }
  while (!group.empty() && group != "/") {
    folders->push_back(mount.folder + group);
    group.resize(group.find_last_of('/'));
  }
  folders->push_back(mount.folder);
}

}  // namespace

std::vector<std::string> ControlGroupFolders(std::string_view controller, const std::string& root) {
  std::vector<std::string> folders;
  const std::vector<Mount> mounts = Mounts(root);
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:group
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool version2 = parts[1].empty();
    if (!version2 && !Names(parts[1], controller)) continue;
    for (const Mount& mount : mounts) {
      if (mount.version2 != version2) continue;
      if (!version2 && !Names(mount.controllers, controller)) continue;
      AddFolders(mount, parts[2], &folders);
    }
  }
  return folders;
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace attnserve
