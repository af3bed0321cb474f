// verify: attention cases that other people wrote, through Attend and through sessions.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/attnctl/command.h"
#include "client/attnctl/tensor_input.h"
#include "lib/base/status_macros.h"
#include "lib/model/safetensors.h"

namespace attnserve::ctl {
namespace {

constexpr char kFooter[] =
    "A case is what the ONNX operator Attention should compute, in one safetensors file: tensors\n"
    "Q, K, V and the expected Y; as the case has them attn_mask, past_key, past_value,\n"
    "nonpad_kv_seqlen and the expected present_key, present_value, qk_matmul_output; attributes\n"
    "in the metadata as attr.NAME, for example attr.is_causal = \"1\". Each case runs through\n"
    "Attend; those with a past also through sessions, one a batch row.\n"
    "\n"
    "attnserve brings no cases and no converter. The onnx repository has such cases, as .pb files\n"
    "in onnx/backend/test/data/node/test_attention_*; write each as one safetensors file.\n"
    "Example:\n  attnctl verify --cases my_cases";

// A case of the ONNX operator Attention: inputs and expected outputs by name, attributes as attr.*.
class Case {
 public:
  static absl::StatusOr<Case> Load(const std::string& path) {
    ATTNSERVE_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
    Case result;
    for (const std::string& name : file->names()) {
      ATTNSERVE_ASSIGN_OR_RETURN(const LoadedTensor tensor, file->Load(name));
      result.tensors_[name] = ToMessage(tensor.view);
    }
    result.metadata_ = file->metadata();
    ATTNSERVE_RETURN_IF_ERROR(result.Check());
    return result;
  }

  const v1::Tensor* Find(const std::string& name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : &it->second;
  }
  double Attribute(const std::string& name, double otherwise) const {
    const auto it = metadata_.find("attr." + name);
    double value = otherwise;
    return it != metadata_.end() && absl::SimpleAtod(it->second, &value) ? value : otherwise;
  }
  bool Has(const std::string& name) const { return metadata_.count("attr." + name) > 0; }

  int64_t Heads() const { return HeadsOf("Q", "q_num_heads"); }
  int64_t KvHeads() const { return HeadsOf("K", "kv_num_heads"); }

  v1::AttentionOptions Options() const {
    v1::AttentionOptions options;
    options.set_causal(Attribute("is_causal", 0) != 0);
    options.set_softcap(static_cast<float>(Attribute("softcap", 0)));
    if (Has("scale")) options.set_scale(static_cast<float>(Attribute("scale", 0)));
    return options;
  }
  // The stage that "qk_matmul_output" shows: the operator's modes 0 to 3 are ours in order.
  std::optional<v1::Stage> Stage() const {
    if (Find("qk_matmul_output") == nullptr) return std::nullopt;
    return static_cast<v1::Stage>(v1::STAGE_SCORES +
                                  static_cast<int>(Attribute("qk_matmul_output_mode", 0)));
  }

 private:
  int64_t HeadsOf(const std::string& name, const std::string& attribute) const {
    const v1::Tensor& tensor = *Find(name);
    return tensor.shape_size() == 4 ? tensor.shape(1)
                                    : static_cast<int64_t>(Attribute(attribute, 0));
  }
  // What the code below relies on: which tensors there are, their ranks and batch sizes, that heads
  // divide widths. The server checks the rest.
  absl::Status Check() const {
    for (const char* name : {"Q", "K", "V", "Y"}) {
      if (Find(name) != nullptr) continue;
      return absl::InvalidArgumentError(absl::StrCat("there is no tensor ", name));
    }
    for (const std::string prefix : {"past_", "present_"}) {
      if ((Find(prefix + "key") == nullptr) != (Find(prefix + "value") == nullptr)) {
        return absl::InvalidArgumentError(
            absl::StrCat(prefix, "key and ", prefix, "value do not come together"));
      }
    }
    const int64_t batch = Find("Q")->shape_size() > 0 ? Find("Q")->shape(0) : 0;
    for (const char* name : {"Q", "K", "V", "Y", "past_key", "past_value", "qk_matmul_output"}) {
      const v1::Tensor* tensor = Find(name);
      if (tensor == nullptr) continue;
      const int rank = tensor->shape_size();
      const bool flat = rank == 3 && absl::string_view(name).size() == 1;
      const int64_t heads = name[0] == 'K' || name[0] == 'V' ? KvHeads() : Heads();
      if ((rank != 4 && !flat) || batch < 1 || tensor->shape(0) != batch ||
          (flat && (heads < 1 || tensor->shape(2) % heads != 0))) {
        return absl::InvalidArgumentError(absl::StrCat("the shape of ", name, " is wrong"));
      }
    }
    const double mode = Attribute("qk_matmul_output_mode", 0);
    if (mode != 0 && mode != 1 && mode != 2 && mode != 3) {
      return absl::InvalidArgumentError("qk_matmul_output_mode is not 0, 1, 2 or 3");
    }
    return absl::OkStatus();
  }

  std::map<std::string, v1::Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// |actual - expected| <= atol + rtol |expected|, with the operator's own tolerances.
absl::Status Compare(const std::string& what, const v1::Tensor& expected,
                     const v1::Tensor& actual) {
  const bool half = expected.dtype() != v1::DTYPE_F32;
  const double rtol = half ? 1e-2 : 1e-3, atol = half ? 1e-2 : 1e-5;
  ATTNSERVE_ASSIGN_OR_RETURN(const std::vector<float> want, client::ToFloats(expected));
  ATTNSERVE_ASSIGN_OR_RETURN(const std::vector<float> got, client::ToFloats(actual));
  if (want.size() != got.size()) {
    return absl::DataLossError(
        absl::StrCat(what, " has ", got.size(), " elements, expected ", want.size()));
  }
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = want[i] == got[i] || (std::isnan(want[i]) && std::isnan(got[i]));
    const bool near =
        std::isfinite(want[i]) && std::fabs(got[i] - want[i]) <= atol + rtol * std::fabs(want[i]);
    if (same || near) continue;
    return absl::DataLossError(
        absl::StrFormat("%s[%d] is %.9g, expected %.9g", what, i, got[i], want[i]));
  }
  return absl::OkStatus();
}

absl::Status VerifyAttend(const client::Client& client, const Case& test) {
  v1::AttendRequest request;
  *request.mutable_q() = *test.Find("Q");
  *request.mutable_k() = *test.Find("K");
  *request.mutable_v() = *test.Find("V");
  if (const auto* past = test.Find("past_key")) *request.mutable_past_key() = *past;
  if (const auto* past = test.Find("past_value")) *request.mutable_past_value() = *past;
  if (const auto* mask = test.Find("attn_mask")) {
    *request.mutable_masks()->mutable_attention_mask() = *mask;
  }
  if (const auto* lengths = test.Find("nonpad_kv_seqlen")) {
    *request.mutable_static_cache_lengths() = *lengths;
  }
  request.set_head_count(static_cast<int64_t>(test.Attribute("q_num_heads", 0)));
  request.set_kv_head_count(static_cast<int64_t>(test.Attribute("kv_num_heads", 0)));
  *request.mutable_options() = test.Options();
  if (const auto stage = test.Stage()) request.add_stages(*stage);
  const auto* present_key = test.Find("present_key");
  request.set_return_present(present_key != nullptr);
  ATTNSERVE_ASSIGN_OR_RETURN(const v1::AttendResponse reply, client.Attend(request));
  ATTNSERVE_RETURN_IF_ERROR(Compare("Y", *test.Find("Y"), reply.output()));
  if (present_key != nullptr) {
    ATTNSERVE_RETURN_IF_ERROR(Compare("present_key", *present_key, reply.present_key()));
    ATTNSERVE_RETURN_IF_ERROR(
        Compare("present_value", *test.Find("present_value"), reply.present_value()));
  }
  if (!test.Stage().has_value()) return absl::OkStatus();
  return Compare("qk_matmul_output", *test.Find("qk_matmul_output"), reply.stages(0).tensor());
}

// Batch row `row` of a tensor, as [1, heads, tokens, size]. [B, tokens, heads * size] is turned.
absl::StatusOr<v1::Tensor> BatchRow(const v1::Tensor& tensor, int64_t row, int64_t heads) {
  ATTNSERVE_ASSIGN_OR_RETURN(const std::vector<float> all, client::ToFloats(tensor));
  const int64_t count = static_cast<int64_t>(all.size()) / tensor.shape(0);
  const float* from = all.data() + row * count;
  std::vector<float> values(from, from + count);
  if (tensor.shape_size() == 4) {
    return client::F32Tensor(values, {1, tensor.shape(1), tensor.shape(2), tensor.shape(3)});
  }
  const int64_t tokens = tensor.shape(1), size = tensor.shape(2) / heads;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < size; ++i) {
        values[static_cast<size_t>((h * tokens + t) * size + i)] = from[(t * heads + h) * size + i];
      }
    }
  }
  return client::F32Tensor(values, {1, heads, tokens, size});
}

// The part of a mask that concerns one batch row.
absl::StatusOr<v1::Tensor> MaskRow(const v1::Tensor& mask, int64_t row) {
  if (mask.shape_size() < 4 || mask.shape(0) == 1) return mask;
  v1::Tensor result = mask;
  const size_t bytes = mask.data().size() / static_cast<size_t>(mask.shape(0));
  result.set_shape(0, 1);
  result.set_data(mask.data().substr(static_cast<size_t>(row) * bytes, bytes));
  return result;
}

// One batch row as a session: its past is appended without queries, then the step is decoded.
absl::Status VerifySession(const client::Client& client, const Case& test, int64_t row) {
  const v1::Tensor& past_key = *test.Find("past_key");
  v1::CreateSessionRequest request;
  v1::LayerSpec& layer = *request.mutable_core()->add_layers();
  const int64_t kv_heads = test.KvHeads(), heads = test.Heads();
  layer.set_kind(v1::LAYER_KIND_CORE_ATTENTION);
  layer.set_head_count(heads);
  layer.set_kv_head_count(kv_heads);
  layer.set_key_head_size(past_key.shape(3));
  layer.set_value_head_size(test.Find("past_value")->shape(3));
  *layer.mutable_attention() = test.Options();
  ATTNSERVE_ASSIGN_OR_RETURN(client::Session session, client.CreateSession(request));

  v1::DecodeRequest past;
  past.set_layer(0);
  *past.mutable_q() = client::F32Tensor({}, {1, heads, 0, past_key.shape(3)});
  ATTNSERVE_ASSIGN_OR_RETURN(*past.mutable_k(), BatchRow(past_key, row, kv_heads));
  ATTNSERVE_ASSIGN_OR_RETURN(*past.mutable_v(), BatchRow(*test.Find("past_value"), row, kv_heads));
  ATTNSERVE_RETURN_IF_ERROR(session.Decode(std::move(past)).status());

  v1::DecodeRequest step;
  step.set_layer(0);
  ATTNSERVE_ASSIGN_OR_RETURN(*step.mutable_q(), BatchRow(*test.Find("Q"), row, heads));
  ATTNSERVE_ASSIGN_OR_RETURN(*step.mutable_k(), BatchRow(*test.Find("K"), row, kv_heads));
  ATTNSERVE_ASSIGN_OR_RETURN(*step.mutable_v(), BatchRow(*test.Find("V"), row, kv_heads));
  if (const auto* mask = test.Find("attn_mask")) {
    ATTNSERVE_ASSIGN_OR_RETURN(*step.mutable_attention_mask(), MaskRow(*mask, row));
  }
  if (const auto stage = test.Stage()) step.add_stages(*stage);
  ATTNSERVE_ASSIGN_OR_RETURN(const v1::DecodeResponse reply, session.Decode(std::move(step)));
  ATTNSERVE_ASSIGN_OR_RETURN(const v1::Tensor expected, BatchRow(*test.Find("Y"), row, heads));
  const std::string where = absl::StrCat(" of the session for batch row ", row);
  ATTNSERVE_RETURN_IF_ERROR(Compare("Y" + where, expected, reply.output()));
  if (!test.Stage().has_value()) return absl::OkStatus();
  ATTNSERVE_ASSIGN_OR_RETURN(const v1::Tensor stage,
                             BatchRow(*test.Find("qk_matmul_output"), row, heads));
  return Compare("qk_matmul_output" + where, stage, reply.stages(0).tensor());
}

absl::Status VerifyCase(const client::Client& client, const std::string& path) {
  ATTNSERVE_ASSIGN_OR_RETURN(const Case test, Case::Load(path));
  ATTNSERVE_RETURN_IF_ERROR(VerifyAttend(client, test));
  const v1::Tensor* past = test.Find("past_key");
  for (int64_t row = 0; past != nullptr && row < past->shape(0); ++row) {
    ATTNSERVE_RETURN_IF_ERROR(VerifySession(client, test, row));
  }
  return absl::OkStatus();
}

// The file, or the .safetensors files of the folder in order.
absl::StatusOr<std::vector<std::string>> CasePaths(const std::string& where) {
  std::error_code error;
  if (std::filesystem::is_regular_file(where, error)) return std::vector<std::string>{where};
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(where, error)) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  }
  if (error) return absl::NotFoundError(absl::StrCat(where, ": ", error.message()));
  if (paths.empty()) return absl::NotFoundError(absl::StrCat(where, " has no .safetensors file"));
  std::sort(paths.begin(), paths.end());
  return paths;
}

absl::Status Verify(const Global& global, const std::string& where) {
  ATTNSERVE_ASSIGN_OR_RETURN(const std::vector<std::string> paths, CasePaths(where));
  ATTNSERVE_ASSIGN_OR_RETURN(const client::Client client, Connect(global));
  int64_t passed = 0, failed = 0;
  std::string failures;  // as JSON
  for (const std::string& path : paths) {
    const absl::Status status = VerifyCase(client, path);
    if (absl::IsUnavailable(status)) return status;
    ++(status.ok() ? passed : failed);
    if (status.ok()) continue;
    const std::string name = std::filesystem::path(path).stem().string();
    const std::string message(status.message());
    std::fprintf(stderr, "%s: %s\n", name.c_str(), message.c_str());
    absl::StrAppend(&failures, failures.empty() ? "" : ", ", JsonString(name), ": ",
                    JsonString(message));
  }
  if (global.json) {
    std::printf("{\"passed\": %lld, \"failed\": %lld, \"failures\": {%s}}\n",
                static_cast<long long>(passed), static_cast<long long>(failed), failures.c_str());
  } else {
    std::printf("%lld passed, %lld failed\n", static_cast<long long>(passed),
                static_cast<long long>(failed));
  }
  return failed == 0 ? absl::OkStatus() : absl::Status(absl::StatusCode::kDataLoss, "");
}

}  // namespace

void AddVerifyCommand(CLI::App* app) {
  auto where = std::make_shared<std::string>();
  CLI::App* verify =
      app->add_subcommand("verify", "Run attention cases with known results against the server");
  verify->add_option("--cases", *where, "A safetensors file, or a folder of them: a case each")
      ->required();
  verify->footer(kFooter);
  SetCommand(verify, [where](const Global& global) { return Verify(global, *where); });
}

}  // namespace attnserve::ctl
