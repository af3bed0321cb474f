#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "lib/attention/field_path.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/model/layer_spec_proto.h"

namespace attnserve {
namespace {

absl::StatusOr<HeadNorm> HeadNormFromProto(const v1::HeadNorm& proto, std::string_view field) {
  HeadNorm norm;
  switch (proto.kind()) {
    case v1::HeadNorm::KIND_RMS:
      norm.kind = HeadNorm::Kind::kRms;
      break;
    case v1::HeadNorm::KIND_LAYER:
      norm.kind = HeadNorm::Kind::kLayer;
      break;
    default:
      return BadOption(FieldPath(field, "kind"), absl::StrCat("is ", static_cast<int>(proto.kind()),
                                                              "; it is KIND_RMS or KIND_LAYER"));
  }
  norm.epsilon = proto.epsilon();
  norm.weight.assign(proto.weight().begin(), proto.weight().end());
  norm.bias.assign(proto.bias().begin(), proto.bias().end());
  return norm;
}

void HeadNormToProto(const HeadNorm& norm, v1::HeadNorm* proto) {
  proto->set_kind(norm.kind == HeadNorm::Kind::kRms ? v1::HeadNorm::KIND_RMS
                                                    : v1::HeadNorm::KIND_LAYER);
  proto->set_epsilon(norm.epsilon);
  proto->mutable_weight()->Add(norm.weight.begin(), norm.weight.end());
  proto->mutable_bias()->Add(norm.bias.begin(), norm.bias.end());
}

YarnScaling YarnFromProto(const v1::YarnScaling& proto) {
  YarnScaling yarn;
  yarn.factor = proto.factor();
  yarn.original_max_tokens = proto.original_max_tokens();
  if (proto.has_beta_fast()) yarn.beta_fast = proto.beta_fast();
  if (proto.has_beta_slow()) yarn.beta_slow = proto.beta_slow();
  if (proto.has_attention_factor()) yarn.attention_factor = proto.attention_factor();
  return yarn;
}

void SetScaling(const v1::RotaryPosition& proto, RotaryPosition* rotary) {
  switch (proto.scaling_case()) {
    case v1::RotaryPosition::kLinear:
      rotary->scaling = LinearScaling{proto.linear().factor()};
      break;
    case v1::RotaryPosition::kDynamicNtk:
      rotary->scaling = DynamicNtkScaling{proto.dynamic_ntk().factor(),
                                          proto.dynamic_ntk().original_max_tokens()};
      break;
    case v1::RotaryPosition::kYarn:
      rotary->scaling = YarnFromProto(proto.yarn());
      break;
    case v1::RotaryPosition::kLlama3:
      rotary->scaling =
          Llama3Scaling{proto.llama3().factor(), proto.llama3().low_freq_factor(),
                        proto.llama3().high_freq_factor(), proto.llama3().original_max_tokens()};
      break;
    case v1::RotaryPosition::SCALING_NOT_SET:
      break;
  }
}

absl::StatusOr<RotaryPosition> RotaryFromProto(const v1::RotaryPosition& proto,
                                               std::string_view field) {
  RotaryPosition rotary;
  switch (proto.pairing()) {
    case v1::RotaryPosition::PAIRING_HALF_SPLIT:
      rotary.pairing = RotaryPosition::Pairing::kHalfSplit;
      break;
    case v1::RotaryPosition::PAIRING_INTERLEAVED:
      rotary.pairing = RotaryPosition::Pairing::kInterleaved;
      break;
    default:
      return BadOption(FieldPath(field, "pairing"),
                       absl::StrCat("is ", static_cast<int>(proto.pairing()),
                                    "; it is PAIRING_HALF_SPLIT or PAIRING_INTERLEAVED"));
  }
  if (proto.theta() != 0.0) rotary.theta = proto.theta();
  rotary.dimension = proto.dimension();
  SetScaling(proto, &rotary);
  return rotary;
}

void ScalingToProto(const LinearScaling& scaling, v1::RotaryPosition* proto) {
  proto->mutable_linear()->set_factor(scaling.factor);
}

void ScalingToProto(const DynamicNtkScaling& scaling, v1::RotaryPosition* proto) {
  proto->mutable_dynamic_ntk()->set_factor(scaling.factor);
  proto->mutable_dynamic_ntk()->set_original_max_tokens(scaling.original_max_tokens);
}

void ScalingToProto(const YarnScaling& scaling, v1::RotaryPosition* proto) {
  v1::YarnScaling& yarn = *proto->mutable_yarn();
  yarn.set_factor(scaling.factor);
  yarn.set_original_max_tokens(scaling.original_max_tokens);
  yarn.set_beta_fast(scaling.beta_fast);
  yarn.set_beta_slow(scaling.beta_slow);
  if (scaling.attention_factor.has_value()) yarn.set_attention_factor(*scaling.attention_factor);
}

void ScalingToProto(const Llama3Scaling& scaling, v1::RotaryPosition* proto) {
  v1::Llama3Scaling& llama3 = *proto->mutable_llama3();
  llama3.set_factor(scaling.factor);
  llama3.set_low_freq_factor(scaling.low_freq_factor);
  llama3.set_high_freq_factor(scaling.high_freq_factor);
  llama3.set_original_max_tokens(scaling.original_max_tokens);
}

void ScalingToProto(std::monostate, v1::RotaryPosition*) {}

void PositionToProto(const SinusoidalPosition& position, v1::AttentionOptions* proto) {
  proto->mutable_sinusoidal()->set_base(position.base);
}

void PositionToProto(const RotaryPosition& position, v1::AttentionOptions* proto) {
  v1::RotaryPosition* rotary = proto->mutable_rotary();
  rotary->set_pairing(position.pairing == RotaryPosition::Pairing::kHalfSplit
                          ? v1::RotaryPosition::PAIRING_HALF_SPLIT
                          : v1::RotaryPosition::PAIRING_INTERLEAVED);
  rotary->set_theta(position.theta);
  rotary->set_dimension(position.dimension);
  std::visit([rotary](const auto& scaling) { ScalingToProto(scaling, rotary); }, position.scaling);
}

void PositionToProto(const AlibiPosition& position, v1::AttentionOptions* proto) {
  proto->mutable_alibi()->mutable_slopes()->Add(position.slopes.begin(), position.slopes.end());
}

void PositionToProto(std::monostate, v1::AttentionOptions*) {}

absl::Status SetPosition(const v1::AttentionOptions& proto, std::string_view field,
                         AttentionOptions* options) {
  switch (proto.position_case()) {
    case v1::AttentionOptions::kSinusoidal: {
      SinusoidalPosition position;
      if (proto.sinusoidal().base() != 0.0) position.base = proto.sinusoidal().base();
      options->position = position;
      break;
    }
    case v1::AttentionOptions::kRotary: {
      ATTNSERVE_ASSIGN_OR_RETURN(options->position,
                                 RotaryFromProto(proto.rotary(), FieldPath(field, "rotary")));
      break;
    }
    case v1::AttentionOptions::kAlibi:
      options->position =
          AlibiPosition{{proto.alibi().slopes().begin(), proto.alibi().slopes().end()}};
      break;
    case v1::AttentionOptions::POSITION_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AttentionOptions> AttentionOptionsFromProto(const v1::AttentionOptions& proto,
                                                           std::string_view field) {
  AttentionOptions options;
  options.causal = proto.causal();
  if (proto.has_window()) options.window = {proto.window().left(), proto.window().right()};
  options.sink_token_count = proto.sink_token_count();
  if (proto.has_scale()) options.scale = proto.scale();
  options.softcap = proto.softcap();
  options.sink_logits.assign(proto.sink_logits().begin(), proto.sink_logits().end());
  if (proto.has_query_norm()) {
    ATTNSERVE_ASSIGN_OR_RETURN(
        options.query_norm, HeadNormFromProto(proto.query_norm(), FieldPath(field, "query_norm")));
  }
  if (proto.has_key_norm()) {
    ATTNSERVE_ASSIGN_OR_RETURN(options.key_norm,
                               HeadNormFromProto(proto.key_norm(), FieldPath(field, "key_norm")));
  }
  ATTNSERVE_RETURN_IF_ERROR(SetPosition(proto, field, &options));
  return options;
}

v1::AttentionOptions AttentionOptionsToProto(const AttentionOptions& options,
                                             int64_t key_head_size) {
  v1::AttentionOptions proto;
  proto.set_causal(options.causal);
  proto.mutable_window()->set_left(options.window.left);
  proto.mutable_window()->set_right(options.window.right);
  proto.set_sink_token_count(options.sink_token_count);
  proto.set_scale(ScoreScale(options, key_head_size));
  proto.set_softcap(options.softcap);
  proto.mutable_sink_logits()->Add(options.sink_logits.begin(), options.sink_logits.end());
  if (options.query_norm.kind != HeadNorm::Kind::kNone) {
    HeadNormToProto(options.query_norm, proto.mutable_query_norm());
  }
  if (options.key_norm.kind != HeadNorm::Kind::kNone) {
    HeadNormToProto(options.key_norm, proto.mutable_key_norm());
  }
  std::visit([&proto](const auto& position) { PositionToProto(position, &proto); },
             options.position);
  return proto;
}

}  // namespace attnserve
