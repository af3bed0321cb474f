#include "server/wire.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/model/layer_spec_proto.h"

namespace attnserve {
namespace {

namespace v1 = attnserve::v1;

// What a present tensor without elements points to.
constexpr unsigned char kNothing[1] = {0};

absl::Status CheckShape(std::string_view field, absl::Span<const int64_t> shape, int64_t* count) {
  const absl::StatusOr<int64_t> product = ElementCount(shape);
  if (product.ok()) {
    *count = *product;
    return absl::OkStatus();
  }
  const std::string text(product.status().message());
  bool negative = false;
  for (const int64_t size : shape) negative |= size < 0;
  if (negative || shape.size() > static_cast<size_t>(kMaxRank)) return BadShape(field, text);
  return TooLarge(field, text);
}

// Exactly one of `data` and `values` has the elements.
absl::Status CheckSize(std::string_view field, const v1::Tensor& tensor, DType dtype,
                       int64_t count) {
  const std::string shape = ShapeToString(tensor.shape());
  if (!tensor.data().empty() && !tensor.values().empty()) {
    return SizeMismatch(field, "has both data and values; set one of them");
  }
  if (!tensor.values().empty()) {
    if (tensor.values().size() == count) return absl::OkStatus();
    return SizeMismatch(field, absl::StrCat("has ", tensor.values().size(), " values; shape ",
                                            shape, " has ", count, " elements"));
  }
  const int64_t size = static_cast<int64_t>(ElementSize(dtype));
  if (count > INT64_MAX / size) {
    return TooLarge(field, absl::StrCat("shape ", shape, " needs more than 2^63 bytes"));
  }
  const int64_t sent = static_cast<int64_t>(tensor.data().size());
  if (sent == count * size) return absl::OkStatus();
  return SizeMismatch(field, absl::StrCat("has ", sent, " bytes of data; shape ", shape, " of ",
                                          std::string(DTypeName(dtype)), " needs ", count * size));
}

// `value` as I64; false if it is no whole number or out of range.
bool ToInt64(float value, int64_t* result) {
  // 2^63 is a float; the largest float below it fits.
  if (!(value >= -0x1p63f && value < 0x1p63f) || std::trunc(value) != value) return false;
  *result = static_cast<int64_t>(value);
  return true;
}

std::string StageNames() {
  std::string names;
  const google::protobuf::EnumDescriptor& stages = *v1::Stage_descriptor();
  for (int i = 0; i < stages.value_count(); ++i) {
    if (stages.value(i)->number() == v1::STAGE_UNSPECIFIED) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ", stages.value(i)->name());
  }
  return names;
}

}  // namespace

absl::Status TensorDecoder::Decode(std::string_view field, const v1::Tensor& tensor,
                                   TensorView* view) {
  ATTNSERVE_ASSIGN_OR_RETURN(
      const DType dtype,
      DTypeFromProto(tensor.dtype(), absl::StrCat(std::string(field), ".dtype")));
  if (dtype == DType::kI8) {
    return BadDType(absl::StrCat(std::string(field), ".dtype"),
                    "is I8, which only caches hold; it is F32, F16, BF16, BOOL or I64");
  }
  int64_t count = 0;
  ATTNSERVE_RETURN_IF_ERROR(CheckShape(field, tensor.shape(), &count));
  ATTNSERVE_RETURN_IF_ERROR(CheckSize(field, tensor, dtype, count));
  const bool values = !tensor.values().empty();
  if (IsFloat(dtype)) {
    const Form form = count == 0 ? Form::kUnknown : values ? Form::kValues : Form::kData;
    ATTNSERVE_RETURN_IF_ERROR(CheckFloat(field, dtype, form));
  }
  view->dtype = dtype;
  view->shape.assign(tensor.shape().begin(), tensor.shape().end());
  if (count == 0) {
    view->data = kNothing;
  } else if (!values) {
    view->data = tensor.data().data();
  } else if (dtype == DType::kF32) {
    view->data = tensor.values().data();
  } else {
    return Convert(field, tensor, view);
  }
  return absl::OkStatus();
}

absl::Status TensorDecoder::CheckFloat(std::string_view field, DType dtype, Form form) {
  if (has_dtype_ && dtype != dtype_) {
    return BadDType(field,
                    absl::StrCat("is ", std::string(DTypeName(dtype)),
                                 " but an earlier tensor of the request is ",
                                 std::string(DTypeName(dtype_)), "; float tensors share one type"));
  }
  has_dtype_ = true;
  dtype_ = dtype;
  if (form == Form::kUnknown) return absl::OkStatus();
  if (form_ != Form::kUnknown && form != form_) {
    return BadOption(field, absl::StrCat("has ", form == Form::kValues ? "values" : "data",
                                         " but an earlier tensor of the request has ",
                                         form == Form::kValues ? "data" : "values",
                                         "; float tensors share one form"));
  }
  form_ = form;
  return absl::OkStatus();
}

absl::Status TensorDecoder::Convert(std::string_view field, const v1::Tensor& tensor,
                                    TensorView* view) {
  const auto& values = tensor.values();
  const size_t size = ElementSize(view->dtype);
  // Elements are as many as values, so this is at most twice what came.
  converted_.emplace_back(new unsigned char[static_cast<size_t>(values.size()) * size]);
  unsigned char* target = converted_.back().get();
  view->data = target;
  if (IsFloat(view->dtype)) {
    StoreFromF32(values.data(), values.size(), view->dtype, target);
    return absl::OkStatus();
  }
  for (int i = 0; i < values.size(); ++i) {
    const float value = values.Get(i);
    const std::string text = absl::StrCat("value ", i, " is ", value);
    if (view->dtype == DType::kBool) {
      if (value != 0.0f && value != 1.0f) {
        return BadMask(field, absl::StrCat(text, "; a BOOL is 0 or 1"));
      }
      target[i] = value != 0.0f ? 1 : 0;
    } else {
      int64_t whole = 0;
      if (!ToInt64(value, &whole)) {
        return BadDType(field, absl::StrCat(text, "; an I64 is a whole number of 64 bits"));
      }
      std::memcpy(target + static_cast<size_t>(i) * size, &whole, size);
    }
  }
  return absl::OkStatus();
}

void* TensorEncoder::Allocate(DType dtype, absl::Span<const int64_t> shape, v1::Tensor* tensor) {
  tensor->set_dtype(DTypeToProto(dtype));
  tensor->mutable_shape()->Assign(shape.begin(), shape.end());
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const size_t bytes = static_cast<size_t>(count) * ElementSize(dtype);
  if (!uses_values_) {
    tensor->mutable_data()->resize(bytes);
    return &(*tensor->mutable_data())[0];
  }
  if (dtype == DType::kF32) {
    tensor->mutable_values()->Resize(static_cast<int>(count), 0.0f);
    return tensor->mutable_values()->mutable_data();
  }
  pending_.push_back({tensor, dtype, count, std::make_unique<unsigned char[]>(bytes)});
  return pending_.back().data.get();
}

void TensorEncoder::Finish() {
  for (Pending& pending : pending_) {
    auto* values = pending.tensor->mutable_values();
    values->Resize(static_cast<int>(pending.count), 0.0f);
    LoadAsF32(pending.dtype, pending.data.get(), pending.count, values->mutable_data());
  }
  pending_.clear();
}

absl::Status DecodeStages(std::string_view field, const google::protobuf::RepeatedField<int>& wire,
                          absl::InlinedVector<Stage, 2>* stages) {
  for (int i = 0; i < wire.size(); ++i) {
    switch (wire.Get(i)) {
      case v1::STAGE_SCORES:
        stages->push_back(Stage::kScores);
        break;
      case v1::STAGE_SOFTCAPPED:
        stages->push_back(Stage::kSoftcapped);
        break;
      case v1::STAGE_MASKED:
        stages->push_back(Stage::kMasked);
        break;
      case v1::STAGE_WEIGHTS:
        stages->push_back(Stage::kWeights);
        break;
      case v1::STAGE_LSE:
        stages->push_back(Stage::kLse);
        break;
      case v1::STAGE_CONTEXT:
        stages->push_back(Stage::kContext);
        break;
      default:
        return BadOption(absl::StrCat(std::string(field), "[", i, "]"),
                         absl::StrCat("is ", wire.Get(i), "; expected one of ", StageNames()));
    }
  }
  return absl::OkStatus();
}

v1::Stage StageToProto(Stage stage) {
  switch (stage) {
    case Stage::kScores:
      return v1::STAGE_SCORES;
    case Stage::kSoftcapped:
      return v1::STAGE_SOFTCAPPED;
    case Stage::kMasked:
      return v1::STAGE_MASKED;
    case Stage::kWeights:
      return v1::STAGE_WEIGHTS;
    case Stage::kLse:
      return v1::STAGE_LSE;
    case Stage::kContext:
      return v1::STAGE_CONTEXT;
  }
  return v1::STAGE_UNSPECIFIED;
}

}  // namespace attnserve
