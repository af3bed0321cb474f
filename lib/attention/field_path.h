// Paths of fields in error messages.
#ifndef ATTNSERVE_LIB_ATTENTION_FIELD_PATH_H_
#define ATTNSERVE_LIB_ATTENTION_FIELD_PATH_H_

#include <string>
#include <string_view>

namespace attnserve {

// "layers[2]" and "window.left" give "layers[2].window.left"; an empty parent gives the name.
inline std::string FieldPath(std::string_view parent, std::string_view name) {
  std::string path(parent);
  if (!path.empty()) path += '.';
  path += name;
  return path;
}

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ATTENTION_FIELD_PATH_H_
