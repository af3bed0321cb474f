// Tensors from the command line.
#ifndef ATTNSERVE_CLIENT_ATTNCTL_TENSOR_INPUT_H_
#define ATTNSERVE_CLIENT_ATTNCTL_TENSOR_INPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attnserve/v1/attention_service.pb.h"
#include "attnserve/v1/tensor.pb.h"
#include "lib/base/tensor.h"

namespace attnserve::ctl {

namespace v1 = attnserve::v1;

// A tensor from `text`: nested JSON lists of numbers (F32) or of true and false (BOOL), a .json
// file of such, or NAME in a safetensors file, written FILE.safetensors#NAME. Leading dimensions of
// 1 are added until it has `rank`. The error names `flag`.
absl::StatusOr<v1::Tensor> ReadTensor(const std::string& flag, const std::string& text, int rank);

// F32 [1, tokens, width] of uniform numbers in [-1, 1).
v1::Tensor RandomTensor(int64_t tokens, int64_t width, uint64_t seed);

// Copies a tensor of lib/ into a message.
v1::Tensor ToMessage(const TensorView& view);

// "scores,weights" as stages; the error says which names there are.
absl::StatusOr<std::vector<v1::Stage>> ParseStages(const std::string& list);

}  // namespace attnserve::ctl

#endif  // ATTNSERVE_CLIENT_ATTNCTL_TENSOR_INPUT_H_
