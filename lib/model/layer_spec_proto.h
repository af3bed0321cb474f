// Layer specifications: protobuf messages to and from lib/attention's structs.
#ifndef ATTNSERVE_LIB_MODEL_LAYER_SPEC_PROTO_H_
#define ATTNSERVE_LIB_MODEL_LAYER_SPEC_PROTO_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "attnserve/v1/layer.pb.h"
#include "attnserve/v1/tensor.pb.h"
#include "lib/attention/layer_spec.h"
#include "lib/base/element_type.h"

namespace attnserve {

// In all errors the field's path starts with `field`, the path of the message itself, for example
// "core.layers[2]" gives "core.layers[2].attention.rotary.theta".

// BAD_DTYPE if `dtype` is unset or not one this version knows.
absl::StatusOr<DType> DTypeFromProto(attnserve::v1::DType dtype, std::string_view field);
attnserve::v1::DType DTypeToProto(DType dtype);

// Completed by CompleteLayerSpec: defaults filled in, ranges checked. Errors are its errors, and
// BAD_OPTION for an enum that is unset or unknown.
absl::StatusOr<LayerSpec> LayerSpecFromProto(const attnserve::v1::LayerSpec& proto,
                                             std::string_view field);

// Every field of a completed `spec` that has a value, defaults included: also the scale.
// LayerSpecFromProto gives the same layer again.
attnserve::v1::LayerSpec LayerSpecToProto(const LayerSpec& spec);

// Only the conversion, without CheckAttentionOptions: BAD_OPTION for an enum that is unset or
// unknown.
absl::StatusOr<AttentionOptions> AttentionOptionsFromProto(
    const attnserve::v1::AttentionOptions& proto, std::string_view field);

// As they are, except that the scale of a head of `key_head_size` elements is filled in.
attnserve::v1::AttentionOptions AttentionOptionsToProto(const AttentionOptions& options,
                                                        int64_t key_head_size);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_LAYER_SPEC_PROTO_H_
