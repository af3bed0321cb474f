#include "lib/model/safetensors.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/model/json_text.h"
#include "lib/model/path_names.h"

namespace attnserve {
namespace {

using nlohmann::json;

// An index lists a name and a file per tensor: the largest in use have some 10 MB.
constexpr size_t kMaxIndexBytes = size_t{100} << 20;

std::optional<DType> LoadableDType(std::string_view dtype) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kBool}) {
    if (DTypeName(type) == dtype) return type;
  }
  return std::nullopt;
}

// Tensor name -> file name, as an index gives them.
absl::StatusOr<std::map<std::string, std::string>> ParseWeightMap(const json& index) {
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError("has no object \"weight_map\"");
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat("weight_map gives tensor ", Quoted(name),
                                                     " a ", file.type_name(),
                                                     ", expected the name of a file"));
    }
    files[name] = file.get<std::string>();
    if (!IsPlainFileName(files[name])) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_map gives tensor ", Quoted(name), " the file ", Quoted(files[name]),
                       "; only files in the index's own folder are read"));
    }
  }
  return files;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(path));
  ATTNSERVE_RETURN_IF_ERROR(absl::EndsWith(path, ".json") ? file->OpenIndex() : file->OpenSingle());
  return file;
}

absl::StatusOr<SafetensorsHeader> SafetensorsFile::AddShard(const std::string& path) {
  Shard shard;
  ATTNSERVE_ASSIGN_OR_RETURN(shard.file, ReadOnlyFile::Open(path));
  const uint64_t size = shard.file->size();
  if (size < kSafetensorsPrefixBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has ", size, " bytes; a safetensors file starts with ", kSafetensorsPrefixBytes));
  }
  std::array<uint8_t, kSafetensorsPrefixBytes> prefix;
  ATTNSERVE_RETURN_IF_ERROR(shard.file->Read(0, prefix.size(), prefix.data()));
  const absl::StatusOr<uint64_t> header_bytes = SafetensorsHeaderBytes(prefix.data(), size);
  if (!header_bytes.ok()) return WithPath(path, header_bytes.status());
  std::string text(static_cast<size_t>(*header_bytes), '\0');
  ATTNSERVE_RETURN_IF_ERROR(shard.file->Read(kSafetensorsPrefixBytes, text.size(), text.data()));
  shard.data_begin = kSafetensorsPrefixBytes + *header_bytes;
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(text, size - shard.data_begin);
  if (!header.ok()) return WithPath(path, header.status());
  shards_.push_back(std::move(shard));
  return header;
}

absl::Status SafetensorsFile::OpenSingle() {
  ATTNSERVE_ASSIGN_OR_RETURN(SafetensorsHeader header, AddShard(path_));
  for (auto& [name, entry] : header.tensors) tensors_[name] = {0, std::move(entry)};
  metadata_ = std::move(header.metadata);
  return absl::OkStatus();
}

absl::Status SafetensorsFile::OpenIndex() {
  ATTNSERVE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path_, kMaxIndexBytes));
  const absl::StatusOr<json> index = ParseJsonObject(text);
  if (!index.ok()) return WithPath(path_, index.status());
  const absl::StatusOr<std::map<std::string, std::string>> files = ParseWeightMap(*index);
  if (!files.ok()) return WithPath(path_, files.status());

  std::map<std::string, SafetensorsHeader> headers;
  std::map<std::string, size_t> shard_of;
  for (const auto& [name, file] : *files) {
    if (shard_of.emplace(file, shards_.size()).second) {
      const std::string path = std::filesystem::path(path_).replace_filename(file).string();
      ATTNSERVE_ASSIGN_OR_RETURN(headers[file], AddShard(path));
    }
    auto& tensors = headers[file].tensors;
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, ": says that ", Quoted(file), " has tensor ", Quoted(name), ", but it has not"));
    }
    tensors_[name] = {shard_of[file], found->second};
  }
  return absl::OkStatus();
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

const SafetensorsEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.entry;
}

absl::StatusOr<LoadedTensor> SafetensorsFile::Load(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": has no tensor ", Quoted(name)));
  }
  const SafetensorsEntry& entry = found->second.entry;
  const Shard& shard = shards_[found->second.shard];
  const std::string what = absl::StrCat(shard.file->path(), ": tensor ", Quoted(name));
  const std::optional<DType> dtype = LoadableDType(entry.dtype);
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has dtype ", entry.dtype,
                                                   "; F32, F16, BF16, I64 and BOOL can be read"));
  }
  if (entry.shape.size() > static_cast<size_t>(kMaxRank)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", entry.shape.size(), " dimensions, at most ", kMaxRank));
  }
  LoadedTensor tensor;
  const size_t bytes = static_cast<size_t>(entry.end - entry.begin);
  try {
    tensor.memory.Reserve(std::max<size_t>(bytes, 1));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, " has ", bytes, " bytes: there is not enough memory"));
  }
  ATTNSERVE_RETURN_IF_ERROR(
      shard.file->Read(shard.data_begin + entry.begin, bytes, tensor.memory.data()));
  if (*dtype == DType::kBool && std::any_of(tensor.memory.data(), tensor.memory.data() + bytes,
                                            [](uint8_t byte) { return byte > 1; })) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is BOOL and has bytes that are neither 0 nor 1"));
  }
  tensor.view.dtype = *dtype;
  tensor.view.shape.assign(entry.shape.begin(), entry.shape.end());
  tensor.view.data = tensor.memory.data();
  return tensor;
}

}  // namespace attnserve
