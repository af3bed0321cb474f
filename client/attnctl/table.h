// Text for eyes.
#ifndef ATTNSERVE_CLIENT_ATTNCTL_TABLE_H_
#define ATTNSERVE_CLIENT_ATTNCTL_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "attnserve/v1/attention_service.pb.h"
#include "attnserve/v1/tensor.pb.h"

namespace attnserve::ctl {

// Prints rows with aligned columns; the first row is the heading.
void PrintTable(const std::vector<std::vector<std::string>>& rows);

// "1 token", "2 tokens".
std::string Counted(int64_t count, const std::string& noun);

// "512 B", "24.0 KiB", "1.5 GiB".
std::string Bytes(int64_t bytes);

// Prints a tensor: its name, shape and type, then its rows, aligned; long ones are cut in the
// middle unless `full`.
absl::Status PrintTensor(const std::string& name, const v1::Tensor& tensor, bool full);

// Prints stages, each with its name and, if `layers`, its layer.
absl::Status PrintStages(const google::protobuf::RepeatedPtrField<v1::StageOutput>& stages,
                         bool layers, bool full);

}  // namespace attnserve::ctl

#endif  // ATTNSERVE_CLIENT_ATTNCTL_TABLE_H_
