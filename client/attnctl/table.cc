#include "client/attnctl/table.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "attnserve/client/tensor.h"

namespace attnserve::ctl {
namespace {

constexpr size_t kShownRows = 32;
constexpr size_t kShownColumns = 8;  // fit into a terminal

std::string Row(const float* values, size_t columns, bool full) {
  std::string row;
  for (size_t c = 0; c < columns; ++c) {
    if (!full && columns > kShownColumns && c == kShownColumns - 1) {
      c = columns - 1;
      absl::StrAppend(&row, " ...");
    }
    absl::StrAppendFormat(&row, " %12.7g", values[c]);
  }
  return row;
}

// Index of row `row` in all dimensions but the last: "[0, 2, 1]".
std::string RowName(const v1::Tensor& tensor, size_t row) {
  std::vector<std::string> index;
  for (int i = tensor.shape_size() - 2; i >= 0; --i) {
    const size_t size = static_cast<size_t>(tensor.shape(i));
    index.insert(index.begin(), absl::StrCat(row % size));
    row /= size;
  }
  return absl::StrCat("[", absl::StrJoin(index, ", "), "]");
}

}  // namespace

void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i]);
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    std::printf("%s\n", line.c_str());
  }
}

std::string Counted(int64_t count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string Bytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  const char* unit = "KiB";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    value /= 1024;
    unit = next;
    if (value < 1024) break;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

absl::Status PrintTensor(const std::string& name, const v1::Tensor& tensor, bool full) {
  const absl::StatusOr<std::vector<float>> values = client::ToFloats(tensor);
  if (!values.ok()) return values.status();
  std::printf("%s  %s [%s]\n", name.c_str(), client::DTypeName(tensor.dtype()).c_str(),
              absl::StrJoin(tensor.shape(), ", ").c_str());
  if (values->empty()) return absl::OkStatus();
  const size_t columns =
      tensor.shape_size() == 0 ? 1 : static_cast<size_t>(tensor.shape(tensor.shape_size() - 1));
  const size_t rows = values->size() / columns;
  const size_t name_width = RowName(tensor, rows - 1).size();
  for (size_t row = 0; row < rows; ++row) {
    if (!full && rows > kShownRows && row == kShownRows - 1) {
      row = rows - 1;
      std::printf("  ...\n");
    }
    std::printf("  %-*s%s\n", static_cast<int>(name_width), RowName(tensor, row).c_str(),
                Row(values->data() + row * columns, columns, full).c_str());
  }
  return absl::OkStatus();
}

absl::Status PrintStages(const google::protobuf::RepeatedPtrField<v1::StageOutput>& stages,
                         bool layers, bool full) {
  for (const v1::StageOutput& stage : stages) {
    std::string name =
        absl::AsciiStrToLower(absl::StripPrefix(v1::Stage_Name(stage.stage()), "STAGE_"));
    if (layers) absl::StrAppend(&name, " of layer ", stage.layer());
    const absl::Status status = PrintTensor(name, stage.tensor(), full);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace attnserve::ctl
