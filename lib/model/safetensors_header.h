// The header of a safetensors file.
//
// A file is: 8 bytes N (little-endian), N bytes of JSON, the data. The JSON object has an entry
// name -> {"dtype", "shape", "data_offsets": [begin, end)} for each tensor, offsets counted from
// the start of the data, and optionally "__metadata__", a map of strings. Together the tensors
// cover the data exactly: no gap, no overlap, nothing behind the last.
// (https://huggingface.co/docs/safetensors, "Format")
#ifndef ATTNSERVE_LIB_MODEL_SAFETENSORS_HEADER_H_
#define ATTNSERVE_LIB_MODEL_SAFETENSORS_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace attnserve {

// Bytes of N.
inline constexpr uint64_t kSafetensorsPrefixBytes = 8;
// Largest N, the reference library's limit.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// One tensor as the header describes it.
struct SafetensorsEntry {
  std::string dtype;           // as written: "F32", "F8_E4M3", ...
  std::vector<int64_t> shape;  // sizes >= 0
  uint64_t begin = 0;          // first byte, from the start of the data
  uint64_t end = 0;            // one behind the last byte; end - begin = elements * element size
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry, std::less<>> tensors;
  std::map<std::string, std::string> metadata;
};

// Bytes of an element of a dtype of the format; 0 if there is no such dtype. (Types of less than a
// byte, F4 and F6, are not known here.)
size_t SafetensorsElementSize(std::string_view dtype);

// N of a file of `file_bytes` (>= 8) bytes that starts with `prefix` [8]. InvalidArgument if it is
// above kMaxSafetensorsHeaderBytes or reaches beyond the file.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(const uint8_t* prefix, uint64_t file_bytes);

// Parses and checks everything said above about a header, `json`, that is followed by `data_bytes`
// of data. InvalidArgument names the tensor and what is wrong with it.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json,
                                                         uint64_t data_bytes);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_SAFETENSORS_HEADER_H_
