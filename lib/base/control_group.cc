#include "lib/base/control_group.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace attnserve {
namespace {

// One mount of a control group hierarchy.
struct Mount {
  std::string folder;  // where
  std::string group;   // which group its top shows, "/" outside of containers
  bool version2 = false;
};

bool Names(absl::string_view list, absl::string_view controller) {
  const std::vector<absl::string_view> names = absl::StrSplit(list, ',');
  return std::find(names.begin(), names.end(), controller) != names.end();
}

// The kernel writes a space, a tab, a newline and a backslash of a path as \ooo.
std::string Unescape(absl::string_view text) {
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const absl::string_view code = text.substr(i, 4);
    if (code.size() == 4 && code[0] == '\\' && std::all_of(&code[1], &code[1] + 3, is_octal)) {
      result += static_cast<char>((code[1] - '0') * 64 + (code[2] - '0') * 8 + (code[3] - '0'));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

// Lines of /proc/self/mountinfo: id parent device group folder options [tags] - type source
// options.
std::vector<Mount> Mounts(absl::string_view controller, const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<std::string> left = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> right = absl::StrSplit(halves[1], ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    const bool version2 = right[0] == "cgroup2";
    if (!version2 && !(right[0] == "cgroup" && Names(right[2], controller))) continue;
    mounts.push_back({root + Unescape(left[4]), Unescape(left[3]), version2});
  }
  return mounts;
}

// `group` of this process as seen below `mount`: "" or "/a/b". A mount that does not show it (in a
// container without a control group namespace) shows the container's own group at its top.
std::string GroupBelow(const Mount& mount, absl::string_view group) {
  const bool shown = mount.group == "/" || absl::ConsumePrefix(&group, mount.group);
  if (!shown || group.size() < 2 || group[0] != '/' || absl::StartsWith(group, "/..")) return "";
  return std::string(group);
}

}  // namespace

std::vector<std::string> ControlGroupFolders(std::string_view controller, const std::string& root) {
  const absl::string_view name(controller.data(), controller.size());
  const std::vector<Mount> mounts = Mounts(name, root);
  std::vector<std::string> folders;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:group
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool version2 = parts[0] == "0" && parts[1].empty();
    if (!version2 && !Names(parts[1], name)) continue;
    for (const Mount& mount : mounts) {
      if (mount.version2 != version2) continue;
      std::string below = GroupBelow(mount, parts[2]);
      for (; !below.empty(); below.resize(below.find_last_of('/'))) {
        folders.push_back(mount.folder + below);
      }
      folders.push_back(mount.folder);
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
