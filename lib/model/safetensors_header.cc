#include "lib/model/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "lib/model/json_text.h"

namespace attnserve {
namespace {

using nlohmann::json;

constexpr std::pair<std::string_view, size_t> kElementSizes[] = {
    {"F32", 4}, {"F16", 2}, {"BF16", 2},    {"F64", 8},     {"BOOL", 1},    {"U8", 1},
    {"I8", 1},  {"U16", 2}, {"I16", 2},     {"U32", 4},     {"I32", 4},     {"U64", 8},
    {"I64", 8}, {"C64", 8}, {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
};

absl::Status TensorError(std::string_view name, std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), ": ", std::string(text)));
}

// A whole number in [0, 2^63), or -1.
int64_t WholeNumber(const json& value) {
  if (!value.is_number_unsigned()) return -1;
  const uint64_t number = value.get<uint64_t>();
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  return number <= kMax ? static_cast<int64_t>(number) : -1;
}

absl::StatusOr<std::vector<int64_t>> WholeNumbers(std::string_view name, const char* field,
                                                  const json& value) {
  if (!value.is_array()) {
    return TensorError(name, absl::StrCat(field, " is a ", value.type_name(), ", not an array"));
  }
  std::vector<int64_t> numbers;
  numbers.reserve(value.size());
  for (const json& element : value) {
    numbers.push_back(WholeNumber(element));
    if (numbers.back() < 0) {
      return TensorError(name, absl::StrCat(field, " holds ", Quoted(element.dump(-1, ' ', true)),
                                            "; whole numbers from 0 to 2^63 - 1 are expected"));
    }
  }
  return numbers;
}

// Bytes of a tensor, at most 2^62.
absl::StatusOr<uint64_t> TensorBytes(std::string_view name, absl::Span<const int64_t> shape,
                                     size_t element_size) {
  constexpr uint64_t kMax = uint64_t{1} << 62;
  uint64_t product = element_size;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size == 0) {
      empty = true;
    } else if (product > kMax / static_cast<uint64_t>(size)) {
      return TensorError(
          name, absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] has more than 2^62 bytes"));
    } else {
      product *= static_cast<uint64_t>(size);
    }
  }
  return empty ? 0 : product;
}

absl::StatusOr<SafetensorsEntry> ParseEntry(std::string_view name, const json& value) {
  if (!value.is_object()) {
    return TensorError(name, absl::StrCat("is a ", value.type_name(), ", expected an object"));
  }
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(field)) return TensorError(name, absl::StrCat("has no ", field));
  }
  if (value.size() != 3) {
    for (const auto& [field, unused] : value.items()) {
      if (field == "dtype" || field == "shape" || field == "data_offsets") continue;
      return TensorError(name, absl::StrCat("has an unknown field ", Quoted(field)));
    }
  }
  SafetensorsEntry entry;
  const json& dtype = value["dtype"];
  if (!dtype.is_string()) {
    return TensorError(name, absl::StrCat("dtype is a ", dtype.type_name(), ", not a string"));
  }
  entry.dtype = dtype.get<std::string>();
  const size_t element_size = SafetensorsElementSize(entry.dtype);
  if (element_size == 0) {
    return TensorError(name, absl::StrCat("dtype ", Quoted(entry.dtype), " is not known"));
  }
  ATTNSERVE_ASSIGN_OR_RETURN(entry.shape, WholeNumbers(name, "shape", value["shape"]));
  ATTNSERVE_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets,
                             WholeNumbers(name, "data_offsets", value["data_offsets"]));
  if (offsets.size() != 2) {
    return TensorError(name, absl::StrCat("data_offsets has ", offsets.size(),
                                          " elements, expected begin and end"));
  }
  if (offsets[0] > offsets[1]) {
    return TensorError(name, absl::StrCat("data_offsets [", offsets[0], ", ", offsets[1],
                                          "] end before they begin"));
  }
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  ATTNSERVE_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(name, entry.shape, element_size));
  if (entry.end - entry.begin != bytes) {
    return TensorError(name, absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "] hold ",
                                          entry.end - entry.begin, " bytes, ", entry.dtype, " [",
                                          absl::StrJoin(entry.shape, ", "), "] takes ", bytes));
  }
  return entry;
}

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(const json& value) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("__metadata__ is a ", value.type_name(), ", expected an object"));
  }
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat("__metadata__ entry ", Quoted(key), " is a ",
                                                     text.type_name(), ", expected a string"));
    }
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

absl::Status CheckCoverage(const SafetensorsHeader& header, uint64_t data_bytes) {
  using Item = std::pair<const std::string, SafetensorsEntry>;
  std::vector<const Item*> items;
  for (const Item& item : header.tensors) items.push_back(&item);
  std::sort(items.begin(), items.end(), [](const Item* a, const Item* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  for (const Item* item : items) {
    if (item->second.end > data_bytes) {
      return TensorError(
          item->first,
          absl::StrCat("ends at byte ", item->second.end, " of the data, which has ", data_bytes,
                       " bytes: the file is cut short, or the header ", "is wrong"));
    }
  }
  uint64_t covered = 0;
  for (const Item* item : items) {
    const auto& [name, entry] = *item;
    if (entry.begin != covered) {
      return TensorError(
          name, absl::StrCat("begins at byte ", entry.begin, " of the data, the tensor before it ",
                             "ends at ", covered, ": they ",
                             entry.begin < covered ? "overlap" : "leave a gap"));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the last tensor ends at byte ", covered,
                                                   " of the data, which has ", data_bytes,
                                                   " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

size_t SafetensorsElementSize(std::string_view dtype) {
  for (const auto& [name, size] : kElementSizes) {
    if (name == dtype) return size;
  }
  return 0;
}

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(const uint8_t* prefix, uint64_t file_bytes) {
  uint64_t bytes = 0;
  for (uint64_t i = kSafetensorsPrefixBytes; i-- > 0;) bytes = bytes << 8 | prefix[i];
  if (bytes > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header's length is ", bytes,
                                                   " bytes, at most ", kMaxSafetensorsHeaderBytes,
                                                   " are allowed: this is not a safetensors file"));
  }
  if (bytes > file_bytes - kSafetensorsPrefixBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header's length is ", bytes, " bytes, but the file has only ",
                     file_bytes - kSafetensorsPrefixBytes, " behind it: it is cut short"));
  }
  return bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text,
                                                         uint64_t data_bytes) {
  if (text.empty() || text.front() != '{') {
    return absl::InvalidArgumentError("the header does not start with {");
  }
  absl::StatusOr<json> document = ParseJsonObject(text);
  if (!document.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the header ", document.status().message()));
  }
  SafetensorsHeader header;
  for (const auto& [name, value] : document->items()) {
    if (name == "__metadata__") {
      ATTNSERVE_ASSIGN_OR_RETURN(header.metadata, ParseMetadata(value));
    } else {
      ATTNSERVE_ASSIGN_OR_RETURN(header.tensors[name], ParseEntry(name, value));
    }
  }
  ATTNSERVE_RETURN_IF_ERROR(CheckCoverage(header, data_bytes));
  return header;
}

}  // namespace attnserve
