#include "client/attnctl/tensor_input.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "attnserve/client/tensor.h"
#include "lib/model/safetensors.h"

namespace attnserve::ctl {
namespace {

using nlohmann::json;

absl::Status OutOfRange(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is out of range; F32 ends at ",
                                                 std::numeric_limits<float>::max(), " either way"));
}

absl::StatusOr<json> ParseJson(const std::string& text) {
  try {
    return json::parse(text);
  } catch (const json::out_of_range&) {
    return OutOfRange("a number");
  } catch (const json::parse_error&) {
    return absl::InvalidArgumentError(
        "is not JSON; expected nested lists, a file.json of such, or file.safetensors#NAME");
  }
}

// Elements of nested lists in order, with the lists' sizes; all must agree.
class ListReader {
 public:
  absl::Status Read(const json& value, size_t depth) {
    if (depth > kMaxRank) return absl::InvalidArgumentError("lists are nested too deeply");
    if (!value.is_array()) {
      if (depth != shape.size()) return absl::InvalidArgumentError("lists have different depths");
      if (value.is_boolean()) {
        bools.push_back(value.get<bool>() ? 1 : 0);
      } else if (value.is_number()) {
        const double number = value.get<double>();
        if (std::fabs(number) > std::numeric_limits<float>::max()) return OutOfRange(value.dump());
        floats.push_back(static_cast<float>(number));
      } else {
        return absl::InvalidArgumentError("an element is neither a number nor true or false");
      }
      return absl::OkStatus();
    }
    if (depth == shape.size() && floats.empty() && bools.empty()) {
      shape.push_back(static_cast<int64_t>(value.size()));
    }
    if (depth >= shape.size() || shape[depth] != static_cast<int64_t>(value.size())) {
      return absl::InvalidArgumentError("lists of one level have different lengths");
    }
    for (const json& element : value) {
      const absl::Status status = Read(element, depth + 1);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> shape;
  std::vector<float> floats;
  std::vector<uint8_t> bools;
};

absl::StatusOr<v1::Tensor> FromJson(const std::string& text) {
  const absl::StatusOr<json> parsed = ParseJson(text);
  if (!parsed.ok()) return parsed.status();
  ListReader reader;
  const absl::Status status = reader.Read(*parsed, 0);
  if (!status.ok()) return status;
  if (!reader.bools.empty()) {
    if (!reader.floats.empty()) {
      return absl::InvalidArgumentError("mixes numbers with true and false");
    }
    return client::BoolTensor(reader.bools, reader.shape);
  }
  return client::F32Tensor(reader.floats, reader.shape);
}

// "q, k, v"; of many names the first few.
std::string SomeOf(const std::vector<std::string>& names) {
  constexpr size_t kShown = 20;
  if (names.empty()) return "none";
  const auto shown = absl::MakeConstSpan(names).subspan(0, kShown);
  const std::string text = absl::StrJoin(shown, ", ");
  if (names.size() <= kShown) return text;
  return absl::StrCat(text, " and ", names.size() - kShown, " more");
}

absl::StatusOr<v1::Tensor> FromSafetensors(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('#', 1));
  const auto file = SafetensorsFile::Open(parts.first);
  if (!file.ok()) return file.status();
  if ((*file)->Find(parts.second) == nullptr) {
    return absl::NotFoundError(absl::StrCat(parts.first, " has no tensor \"", parts.second,
                                            "\"; it has ", SomeOf((*file)->names())));
  }
  const auto tensor = (*file)->Load(parts.second);
  if (!tensor.ok()) return tensor.status();
  return ToMessage(tensor->view);
}

absl::StatusOr<v1::Tensor> Read(const std::string& text) {
  if (absl::StrContains(text, ".safetensors#")) return FromSafetensors(text);
  if (!absl::EndsWith(text, ".json")) return FromJson(text);
  std::ifstream file(text);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", text));
  return FromJson({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
}

}  // namespace

v1::Tensor ToMessage(const TensorView& view) {
  v1::Tensor message;
  switch (view.dtype) {
    case DType::kF32:
      message.set_dtype(v1::DTYPE_F32);
      break;
    case DType::kF16:
      message.set_dtype(v1::DTYPE_F16);
      break;
    case DType::kBF16:
      message.set_dtype(v1::DTYPE_BF16);
      break;
    case DType::kBool:
      message.set_dtype(v1::DTYPE_BOOL);
      break;
    case DType::kI8:  // no tensor is
      message.set_dtype(v1::DTYPE_I8);
      break;
    case DType::kI64:
      message.set_dtype(v1::DTYPE_I64);
      break;
  }
  for (const int64_t size : view.shape) message.add_shape(size);
  message.set_data(view.data, view.bytes());
  return message;
}

absl::StatusOr<v1::Tensor> ReadTensor(const std::string& flag, const std::string& text, int rank) {
  absl::StatusOr<v1::Tensor> tensor = Read(text);
  if (!tensor.ok()) {
    return absl::Status(tensor.status().code(),
                        absl::StrCat(flag, ": ", tensor.status().message()));
  }
  while (tensor->shape_size() < rank) {
    tensor->add_shape(1);
    for (int i = tensor->shape_size() - 1; i > 0; --i)
      tensor->mutable_shape()->SwapElements(i, i - 1);
  }
  return tensor;
}

v1::Tensor RandomTensor(int64_t tokens, int64_t width, uint64_t seed) {
  std::mt19937_64 generator(seed);
  v1::Tensor tensor;
  for (float& value : client::MakeF32({1, tokens, width}, &tensor)) {
    value = static_cast<float>(static_cast<int64_t>(generator() >> 40) - (1 << 23)) * 0x1p-23f;
  }
  return tensor;
}

absl::StatusOr<std::vector<v1::Stage>> ParseStages(const std::string& list) {
  std::vector<v1::Stage> stages;
  for (const auto& name : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    v1::Stage stage;
    if (!v1::Stage_Parse(absl::StrCat("STAGE_", absl::AsciiStrToUpper(name)), &stage) ||
        stage == v1::STAGE_UNSPECIFIED) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", name, "\" is none of scores, softcapped, masked, weights, lse, context"));
    }
    stages.push_back(stage);
  }
  return stages;
}

}  // namespace attnserve::ctl
