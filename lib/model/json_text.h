// Strict JSON for files that come from elsewhere.
#ifndef ATTNSERVE_LIB_MODEL_JSON_TEXT_H_
#define ATTNSERVE_LIB_MODEL_JSON_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace attnserve {

// Deepest nesting of arrays and objects: far above what configurations have.
inline constexpr size_t kMaxJsonDepth = 64;

// The JSON object that `text` consists of. InvalidArgument, with the position, for anything that is
// not JSON (RFC 8259), and for what readers disagree on: a key that occurs twice, invalid UTF-8, a
// number beyond double, nesting deeper than kMaxJsonDepth.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text);

// `text` between quotation marks for a message: escaped, cut at 120 bytes.
std::string Quoted(std::string_view text);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_JSON_TEXT_H_
