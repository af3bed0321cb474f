// attend: the attention function on tensors typed by hand or read from files.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/attnctl/command.h"
#include "client/attnctl/flags.h"
#include "client/attnctl/table.h"
#include "client/attnctl/tensor_input.h"
#include "lib/base/status_macros.h"

namespace attnserve::ctl {
namespace {

constexpr char kFooter[] =
    "A tensor is nested JSON lists, a file of such (x.json), or one of a safetensors file\n"
    "(x.safetensors#NAME). [T, d], [H, T, d] and [B, H, T, d] are understood; with --heads\n"
    "also [B, T, H * d]. A mask is broadcast from the right to [B, H, T, S]: [S] is one for\n"
    "all queries, [T, S] one for all heads.\n"
    "\n"
    "The example of the textbooks: how much does \"shiny\" attend to \"Hello shiny sun!\"?\n"
    "Scores 0.7842 1.3569 1.2487, weights 0.22913 0.40626 0.36460,\n"
    "output 0.39896 0.38542 0.86095:\n"
    "  attnctl attend --scale 1 --stages scores,weights --q '[[0.53,0.34,0.98]]' \\\n"
    "    --k '[[0.34,0.22,0.54],[0.53,0.34,0.98],[0.29,0.54,0.93]]'\n"
    "Without --scale 1, scores are divided by sqrt(3) and the weights are flatter.";

struct AttendFlags {
  std::string q, k, v, past_key, past_value, mask, stages;
  int64_t heads = 0, kv_heads = 0;
  bool causal = false, full = false;
  double scale = 0.0, softcap = 0.0;
  std::vector<int64_t> window;
  bool has_scale = false;
};

absl::Status Fill(const AttendFlags& flags, v1::AttendRequest* request) {
  const int rank = flags.heads > 0 ? 3 : 4;
  const auto read = [](const char* flag, const std::string& text, int tensor_rank,
                       v1::Tensor* target) -> absl::Status {
    if (text.empty()) return absl::OkStatus();
    ATTNSERVE_ASSIGN_OR_RETURN(*target, ReadTensor(flag, text, tensor_rank));
    return absl::OkStatus();
  };
  absl::Status status = read("--q", flags.q, rank, request->mutable_q());
  if (status.ok()) status = read("--k", flags.k, rank, request->mutable_k());
  if (status.ok())
    status = read("--v", flags.v.empty() ? flags.k : flags.v, rank, request->mutable_v());
  if (status.ok() && !flags.past_key.empty()) {
    status = read("--past-key", flags.past_key, 4, request->mutable_past_key());
  }
  if (status.ok() && !flags.past_value.empty()) {
    status = read("--past-value", flags.past_value, 4, request->mutable_past_value());
  }
  if (status.ok() && !flags.mask.empty()) {
    status = read("--mask", flags.mask, 1, request->mutable_masks()->mutable_attention_mask());
  }
  if (!status.ok()) return status;
  request->set_head_count(flags.heads);
  request->set_kv_head_count(flags.kv_heads > 0 ? flags.kv_heads : flags.heads);
  v1::AttentionOptions& options = *request->mutable_options();
  options.set_causal(flags.causal);
  options.set_softcap(static_cast<float>(flags.softcap));
  if (flags.has_scale) options.set_scale(static_cast<float>(flags.scale));
  if (flags.window.size() == 2) {
    options.mutable_window()->set_left(flags.window[0]);
    options.mutable_window()->set_right(flags.window[1]);
  }
  const auto stages = ParseStages(flags.stages);
  if (!stages.ok()) return stages.status();
  for (const v1::Stage stage : *stages) request->add_stages(stage);
  return absl::OkStatus();
}

absl::Status Attend(const Global& global, const AttendFlags& flags) {
  v1::AttendRequest request;
  if (absl::Status status = Fill(flags, &request); !status.ok()) return status;
  const auto client = Connect(global);
  if (!client.ok()) return client.status();
  const auto reply = client->Attend(request);
  if (!reply.ok()) return reply.status();
  if (global.json) {
    PrintJson(*reply);
    return absl::OkStatus();
  }
  const absl::Status status = PrintStages(reply->stages(), /*layers=*/false, flags.full);
  return status.ok() ? PrintTensor("output", reply->output(), flags.full) : status;
}

}  // namespace

void AddAttendCommand(CLI::App* app) {
  CLI::App* attend = app->add_subcommand("attend", "Compute attention on q, k and v");
  auto flags = std::make_shared<AttendFlags>();
  attend->add_option("--q", flags->q, "Queries")->required()->check(SomeText());
  attend->add_option("--k", flags->k, "Keys")->required()->check(SomeText());
  attend->add_option("--v", flags->v, "Values; default the keys")->check(SomeText());
  attend->add_option("--past-key", flags->past_key, "Keys before the new ones")->check(SomeText());
  attend->add_option("--past-value", flags->past_value, "Values before the new ones")
      ->check(SomeText());
  attend->add_option("--mask", flags->mask, "true = attend, or numbers that are added to scores")
      ->check(SomeText());
  attend->add_option("--heads", flags->heads, "Query heads of 3-dimensional tensors")
      ->check(Count(1));
  attend->add_option("--kv-heads", flags->kv_heads, "Key/value heads of 3-dimensional tensors")
      ->check(Count(1));
  attend->add_flag("--causal", flags->causal, "Hide later keys");
  CLI::Option* scale =
      attend->add_option("--scale", flags->scale, "Factor of scores; default 1 / sqrt(d_k)");
  attend->add_option("--softcap", flags->softcap, "c: scores become c * tanh(score / c)");
  attend->add_option("--window", flags->window, "LEFT RIGHT: keys seen on each side; -1: all")
      ->expected(2);
  attend
      ->add_option("--stages", flags->stages,
                   "Also show: scores, softcapped, masked, weights, lse, context")
      ->check(StageNames());
  attend->add_flag("--full", flags->full, "Print large tensors whole");
  attend->footer(kFooter);
  SetCommand(attend, [flags, scale](const Global& global) {
    flags->has_scale = scale->count() > 0;
    return Attend(global, *flags);
  });
}

}  // namespace attnserve::ctl
