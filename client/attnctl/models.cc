// models, info: what a server serves and what it is.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/attnctl/command.h"
#include "client/attnctl/table.h"

namespace attnserve::ctl {
namespace {

std::string Masks(const v1::AttentionOptions& options) {
  std::string text = options.causal() ? "causal" : "full";
  if (options.has_window() && (options.window().left() >= 0 || options.window().right() >= 0)) {
    absl::StrAppend(&text, " window ", options.window().left(), "/", options.window().right());
  }
  return text;
}

std::string Positions(const v1::AttentionOptions& options) {
  switch (options.position_case()) {
    case v1::AttentionOptions::kSinusoidal:
      return "sinusoidal";
    case v1::AttentionOptions::kRotary:
      return absl::StrCat("rotary ", options.rotary().theta());
    case v1::AttentionOptions::kAlibi:
      return "alibi";
    default:
      return "none";
  }
}

absl::Status ShowModel(const client::Client& client, const std::string& name, bool json) {
  const auto model = client.GetModel(name);
  if (!model.ok()) return model.status();
  if (json) {
    PrintJson(*model);
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {
      {"LAYER", "KIND", "IN", "OUT", "HEADS", "KV HEADS", "D_K", "D_V", "MASK", "POSITION"}};
  for (const v1::LayerSpec& layer : model->layers()) {
    rows.push_back({absl::StrCat(rows.size() - 1),
                    layer.kind() == v1::LAYER_KIND_CROSS_ATTENTION ? "cross" : "self",
                    absl::StrCat(layer.input_size()), absl::StrCat(layer.output_size()),
                    absl::StrCat(layer.head_count()), absl::StrCat(layer.kv_head_count()),
                    absl::StrCat(layer.key_head_size()), absl::StrCat(layer.value_head_size()),
                    Masks(layer.attention()), Positions(layer.attention())});
  }
  PrintTable(rows);
  return absl::OkStatus();
}

absl::Status ListModels(const client::Client& client, bool json) {
  const auto models = client.ListModels();
  if (!models.ok()) return models.status();
  if (json) {
    v1::ListModelsResponse all;
    for (const v1::Model& model : *models) *all.add_models() = model;
    PrintJson(all);
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "FORMAT", "LAYERS", "MAX TOKENS", "WEIGHTS"}};
  for (const v1::Model& model : *models) {
    rows.push_back({model.name(), model.format(), absl::StrCat(model.layer_count()),
                    model.max_tokens() == 0 ? "no limit" : absl::StrCat(model.max_tokens()),
                    Bytes(model.weight_bytes())});
  }
  PrintTable(rows);
  return absl::OkStatus();
}

absl::Status ShowInfo(const Global& global) {
  const auto client = Connect(global);
  if (!client.ok()) return client.status();
  const auto info = client->GetServerInfo();
  if (!info.ok()) return info.status();
  if (global.json) {
    PrintJson(*info);
    return absl::OkStatus();
  }
  const absl::Time start = absl::FromUnixSeconds(info->start_time().seconds());
  PrintTable({{"version", info->version()},
              {"started", absl::FormatTime(absl::RFC3339_sec, start, absl::LocalTimeZone())},
              {"instance", info->server_instance_id()},
              {"threads", absl::StrCat(info->thread_count())},
              {"instruction set", info->instruction_set()},
              {"oneDNN", info->onednn_version()},
              {"numerics", info->numerics_id()},
              {"cache",
               absl::StrCat(Bytes(info->kv_used_bytes()), " of ", Bytes(info->kv_budget_bytes()))},
              {"sessions", absl::StrCat(info->session_count(), " of ", info->max_sessions())},
              {"session ttl", absl::StrCat(info->default_session_ttl().seconds(), " s")},
              {"message limit", Bytes(info->max_message_bytes())}});
  return absl::OkStatus();
}

}  // namespace

void AddModelCommands(CLI::App* app) {
  CLI::App* models = app->add_subcommand("models", "List the served models, or one's layers");
  auto name = std::make_shared<std::string>();
  models->add_option("NAME", *name, "Show the layers of this model");
  models->footer("Examples:\n  attnctl models\n  attnctl models demo\n  attnctl models --json");
  SetCommand(models, [name](const Global& global) {
    const auto client = Connect(global);
    if (!client.ok()) return client.status();
    return name->empty() ? ListModels(*client, global.json)
                         : ShowModel(*client, *name, global.json);
  });
  CLI::App* info = app->add_subcommand("info", "Show version, machine, limits and memory");
  info->footer("Example:\n  attnctl info");
  SetCommand(info, ShowInfo);
}

}  // namespace attnserve::ctl
