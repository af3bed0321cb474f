#include "lib/model/layer_spec_proto.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "lib/attention/field_path.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"

namespace attnserve {
namespace {

constexpr char kDTypes[] = "it is F32, F16, BF16, BOOL, I64 or, of a cache, I8";

absl::StatusOr<LayerKind> KindFromProto(v1::LayerKind kind, std::string_view field) {
  switch (kind) {
    case v1::LAYER_KIND_SELF_ATTENTION:
      return LayerKind::kSelfAttention;
    case v1::LAYER_KIND_CROSS_ATTENTION:
      return LayerKind::kCrossAttention;
    case v1::LAYER_KIND_CORE_ATTENTION:
      return LayerKind::kCoreAttention;
    case v1::LAYER_KIND_UNSPECIFIED:
      return BadOption(FieldPath(field, "kind"),
                       "is unset; it is self-attention, cross-attention or core attention");
    default:
      return BadOption(FieldPath(field, "kind"),
                       absl::StrCat("is ", static_cast<int>(kind), ", which is not a LayerKind"));
  }
}

v1::LayerKind KindToProto(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSelfAttention:
      return v1::LAYER_KIND_SELF_ATTENTION;
    case LayerKind::kCrossAttention:
      return v1::LAYER_KIND_CROSS_ATTENTION;
    case LayerKind::kCoreAttention:
      return v1::LAYER_KIND_CORE_ATTENTION;
  }
  return v1::LAYER_KIND_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<DType> DTypeFromProto(v1::DType dtype, std::string_view field) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return DType::kF32;
    case v1::DTYPE_F16:
      return DType::kF16;
    case v1::DTYPE_BF16:
      return DType::kBF16;
    case v1::DTYPE_BOOL:
      return DType::kBool;
    case v1::DTYPE_I64:
      return DType::kI64;
    case v1::DTYPE_I8:
      return DType::kI8;
    case v1::DTYPE_UNSPECIFIED:
      return BadDType(field, absl::StrCat("is unset; ", kDTypes));
    default:
      return BadDType(
          field, absl::StrCat("is ", static_cast<int>(dtype), ", which is not a DType; ", kDTypes));
  }
}

v1::DType DTypeToProto(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return v1::DTYPE_F32;
    case DType::kF16:
      return v1::DTYPE_F16;
    case DType::kBF16:
      return v1::DTYPE_BF16;
    case DType::kBool:
      return v1::DTYPE_BOOL;
    case DType::kI64:
      return v1::DTYPE_I64;
    case DType::kI8:
      return v1::DTYPE_I8;
  }
  return v1::DTYPE_UNSPECIFIED;
}

absl::StatusOr<LayerSpec> LayerSpecFromProto(const v1::LayerSpec& proto, std::string_view field) {
  LayerSpec spec;
  ATTNSERVE_ASSIGN_OR_RETURN(spec.kind, KindFromProto(proto.kind(), field));
  spec.input_size = proto.input_size();
  spec.context_size = proto.context_size();
  spec.output_size = proto.output_size();
  spec.head_count = proto.head_count();
  spec.kv_head_count = proto.kv_head_count();
  spec.key_head_size = proto.key_head_size();
  spec.value_head_size = proto.value_head_size();
  spec.query_bias = proto.query_bias();
  spec.key_bias = proto.key_bias();
  spec.value_bias = proto.value_bias();
  spec.output_projection = proto.output_projection();
  spec.output_bias = proto.output_bias();
  ATTNSERVE_ASSIGN_OR_RETURN(
      spec.attention, AttentionOptionsFromProto(proto.attention(), FieldPath(field, "attention")));
  if (proto.cache_dtype() != v1::DTYPE_UNSPECIFIED) {
    ATTNSERVE_ASSIGN_OR_RETURN(
        spec.cache_dtype, DTypeFromProto(proto.cache_dtype(), FieldPath(field, "cache_dtype")));
  }
  ATTNSERVE_RETURN_IF_ERROR(CompleteLayerSpec(field, &spec));
  return spec;
}

v1::LayerSpec LayerSpecToProto(const LayerSpec& spec) {
  v1::LayerSpec proto;
  proto.set_kind(KindToProto(spec.kind));
  proto.set_input_size(spec.input_size);
  proto.set_context_size(spec.context_size);
  proto.set_output_size(spec.output_size);
  proto.set_head_count(spec.head_count);
  proto.set_kv_head_count(spec.kv_head_count);
  proto.set_key_head_size(spec.key_head_size);
  proto.set_value_head_size(spec.value_head_size);
  proto.set_query_bias(spec.query_bias);
  proto.set_key_bias(spec.key_bias);
  proto.set_value_bias(spec.value_bias);
  proto.set_output_projection(spec.output_projection);
  proto.set_output_bias(spec.output_bias);
  *proto.mutable_attention() = AttentionOptionsToProto(spec.attention, spec.key_head_size);
  proto.set_cache_dtype(DTypeToProto(spec.cache_dtype));
  return proto;
}

}  // namespace attnserve
