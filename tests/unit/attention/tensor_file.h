// Reads safetensors files of test material.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_TENSOR_FILE_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_TENSOR_FILE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/element_type.h"

namespace attnserve {

struct FileTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<double> values;  // row-major
};

struct TensorFile {
  std::map<std::string, FileTensor> tensors;
  std::map<std::string, std::string> metadata;

  bool Has(const std::string& name) const { return tensors.count(name) > 0; }
};

// nullopt where there is no such file or it is not a safetensors file of F32, F16, BF16, BOOL and
// I64 tensors.
std::optional<TensorFile> ReadTensorFile(const std::string& path);

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_TENSOR_FILE_H_
