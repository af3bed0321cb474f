// Tensors between the wire and the engine.
#ifndef ATTNSERVE_SERVER_WIRE_H_
#define ATTNSERVE_SERVER_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "attnserve/v1/attention_service.pb.h"
#include "attnserve/v1/tensor.pb.h"
#include "lib/base/tensor.h"
#include "lib/engine/call.h"

namespace attnserve {

// Makes views of the tensors of one request. Views point into the request or into this object, so
// both outlive them. Float tensors must share one type and one form (`data` or `values`; a tensor
// without elements fits both). Not thread-safe.
class TensorDecoder {
 public:
  // `field` is the tensor's path for errors:
  //   BAD_DTYPE      dtype unset or unknown; another float type than an earlier tensor's; a value
  //                  that an I64 cannot hold
  //   BAD_SHAPE      a negative size, more than 8 dimensions
  //   TOO_LARGE      more than 2^62 elements
  //   SIZE_MISMATCH  data or values do not have as many elements as the shape says, or both are set
  //   BAD_MASK       a BOOL in `values` that is neither 0 nor 1
  //   BAD_OPTION     another form than an earlier float tensor's
  // Contents of `data` are not looked at.
  absl::Status Decode(std::string_view field, const attnserve::v1::Tensor& tensor,
                      TensorView* view);

  // Type and form of the float tensors, and so of the reply; F32 in `data` if there are none.
  DType dtype() const { return dtype_; }
  bool uses_values() const { return form_ == Form::kValues; }

 private:
  enum class Form { kUnknown, kData, kValues };

  absl::Status CheckFloat(std::string_view field, DType dtype, Form form);
  absl::Status Convert(std::string_view field, const attnserve::v1::Tensor& tensor,
                       TensorView* view);

  bool has_dtype_ = false;
  DType dtype_ = DType::kF32;
  Form form_ = Form::kUnknown;
  absl::InlinedVector<std::unique_ptr<unsigned char[]>, 1> converted_;
};

// Makes tensors of one reply, in `data` or `values`. Not thread-safe.
class TensorEncoder {
 public:
  void set_uses_values(bool uses_values) { uses_values_ = uses_values; }

  // Sets type and shape of `tensor` and returns the memory for its elements, which lies in `tensor`
  // or here.
  void* Allocate(DType dtype, absl::Span<const int64_t> shape, attnserve::v1::Tensor* tensor);

  // Call once after all elements have been written: makes `values` of what lies here.
  void Finish();

 private:
  struct Pending {
    attnserve::v1::Tensor* tensor;
    DType dtype;
    int64_t count;
    std::unique_ptr<unsigned char[]> data;
  };

  bool uses_values_ = false;
  std::vector<Pending> pending_;
};

// BAD_OPTION names `field`'s entry that is unset or unknown.
absl::Status DecodeStages(std::string_view field, const google::protobuf::RepeatedField<int>& wire,
                          absl::InlinedVector<Stage, 2>* stages);
attnserve::v1::Stage StageToProto(Stage stage);

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_WIRE_H_
