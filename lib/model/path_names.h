// File names in configurations, and paths in messages.
#ifndef ATTNSERVE_LIB_MODEL_PATH_NAMES_H_
#define ATTNSERVE_LIB_MODEL_PATH_NAMES_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace attnserve {

// Whether `name` names a file in a folder and nothing outside it.
inline bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

// The code of `status`, its message after "path: ", without its ErrorDetail.
inline absl::Status WithPath(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_PATH_NAMES_H_
