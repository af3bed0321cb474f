#include "tests/unit/attention/tensor_file.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace attnserve {
namespace {

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

double LoadElement(DType dtype, const char* bytes) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<double>(Load<float>(bytes));
    case DType::kF16:
      return static_cast<double>(F16ToF32(Load<uint16_t>(bytes)));
    case DType::kBF16:
      return static_cast<double>(Bf16ToF32(Load<uint16_t>(bytes)));
    case DType::kBool:
      return *bytes != 0 ? 1.0 : 0.0;
    case DType::kI64:
      return static_cast<double>(Load<int64_t>(bytes));
    case DType::kI8:
      return static_cast<double>(Load<int8_t>(bytes));
  }
  return 0.0;
}

std::optional<DType> DTypeOf(const std::string& name) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kBool, DType::kI64}) {
    if (DTypeName(type) == name) return type;
  }
  return std::nullopt;
}

}  // namespace

std::optional<TensorFile> ReadTensorFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  if (bytes.size() < 8) return std::nullopt;
  const uint64_t header_bytes = Load<uint64_t>(bytes.data());
  if (header_bytes > bytes.size() - 8) return std::nullopt;
  const auto header =
      nlohmann::json::parse(bytes.substr(8, header_bytes), /*cb=*/nullptr, /*exceptions=*/false);
  if (!header.is_object()) return std::nullopt;

  const std::string body = bytes.substr(8 + header_bytes);
  TensorFile file;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      file.metadata = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    const std::optional<DType> dtype = DTypeOf(entry["dtype"]);
    const size_t begin = entry["data_offsets"][0];
    const size_t end = entry["data_offsets"][1];
    if (!dtype.has_value() || begin > end || end > body.size()) return std::nullopt;
    FileTensor& tensor = file.tensors[name];
    tensor.dtype = *dtype;
    tensor.shape = entry["shape"].get<std::vector<int64_t>>();
    for (size_t at = begin; at < end; at += ElementSize(*dtype)) {
      tensor.values.push_back(LoadElement(*dtype, body.data() + at));
    }
  }
  return file;
}

}  // namespace attnserve
