// Limits that control groups put on this process.
#ifndef ATTNSERVE_LIB_BASE_CONTROL_GROUP_H_
#define ATTNSERVE_LIB_BASE_CONTROL_GROUP_H_

#include <string>
#include <string_view>
#include <vector>

namespace attnserve {

// Folders of the process's control group and of all its ancestors up to the mount, innermost first,
// for a version 1 controller ("memory", "cpu") and for the version 2 hierarchy. A hierarchy whose
// mount does not show the process's group counts by its mount alone. Empty where /proc tells
// nothing. `root` stands before /proc and the mount points, for tests. Sources: cgroups(7), proc(5)
// on /proc/pid/mountinfo.
std::vector<std::string> ControlGroupFolders(std::string_view controller,
                                             const std::string& root = "");

// First line of a file, empty if it cannot be read.
std::string FirstLine(const std::string& path);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_BASE_CONTROL_GROUP_H_
