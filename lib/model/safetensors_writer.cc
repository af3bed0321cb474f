#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/model/json_text.h"
#include "lib/model/safetensors.h"

namespace attnserve {
namespace {

using nlohmann::json;

absl::Status CheckNames(absl::Span<const NamedTensor> tensors) {
  std::set<std::string_view> names = {"__metadata__"};
  for (const NamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name ", Quoted(tensor.name), " is reserved or occurs twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> HeaderText(absl::Span<const NamedTensor* const> tensors,
                                       const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t offset = 0;
  for (const NamedTensor* tensor : tensors) {
    const TensorView& view = tensor->tensor;
    header[tensor->name] = {{"dtype", std::string(DTypeName(view.dtype))},
                            {"shape", std::vector<int64_t>(view.shape.begin(), view.shape.end())},
                            {"data_offsets", {offset, offset + view.bytes()}}};
    offset += view.bytes();
  }
  try {
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // the data start aligned
    return text;
  } catch (const json::exception&) {
    return absl::InvalidArgumentError("a tensor name or the metadata is not UTF-8");
  }
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, absl::Span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  ATTNSERVE_RETURN_IF_ERROR(CheckNames(tensors));
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return ElementSize(a->tensor.dtype) > ElementSize(b->tensor.dtype);
  });
  ATTNSERVE_ASSIGN_OR_RETURN(const std::string header, HeaderText(order, metadata));

  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file.is_open()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be created"));
  }
  for (uint64_t i = 0; i < kSafetensorsPrefixBytes; ++i) {
    file.put(static_cast<char>(header.size() >> (8 * i) & 0xff));
  }
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const NamedTensor* tensor : order) {
    file.write(static_cast<const char*>(tensor->tensor.data),
               static_cast<std::streamsize>(tensor->tensor.bytes()));
  }
  file.close();
  if (file.fail()) {
    std::error_code error;  // a device or a pipe is not ours to remove
    if (std::filesystem::is_regular_file(path, error)) std::filesystem::remove(path, error);
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be written"));
  }
  return absl::OkStatus();
}

}  // namespace attnserve
