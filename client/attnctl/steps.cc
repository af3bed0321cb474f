// forward, decode: one call through a layer.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/attnctl/command.h"
#include "client/attnctl/flags.h"
#include "client/attnctl/table.h"
#include "client/attnctl/tensor_input.h"

namespace attnserve::ctl {
namespace {

struct StepFlags {
  std::string model, session, x, context, stages;
  int32_t layer = -1;
  int64_t random = 0;
  uint64_t seed = 0;
  bool full = false;
};

// x as typed, or random tokens of the width that `model` takes.
absl::StatusOr<v1::Tensor> Input(const client::Client& client, const StepFlags& flags,
                                 const std::string& model) {
  if (flags.random == 0) return ReadTensor("--x", flags.x, 3);
  const auto served = client.GetModel(model);
  if (!served.ok()) return served.status();
  const int layer = std::max(0, flags.layer);
  if (layer >= served->layers_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--layer: the model has ", Counted(served->layers_size(), "layer")));
  }
  return RandomTensor(flags.random, served->layers(layer).input_size(), flags.seed);
}

template <typename Request>
absl::Status FillCommon(const client::Client& client, const StepFlags& flags,
                        const std::string& model, Request* request) {
  absl::StatusOr<v1::Tensor> x = Input(client, flags, model);
  if (!x.ok()) return x.status();
  *request->mutable_x() = *std::move(x);
  if (!flags.context.empty()) {
    absl::StatusOr<v1::Tensor> context = ReadTensor("--context", flags.context, 3);
    if (!context.ok()) return context.status();
    *request->mutable_context() = *std::move(context);
  }
  if (flags.layer >= 0) request->set_layer(flags.layer);
  const auto stages = ParseStages(flags.stages);
  if (!stages.ok()) return stages.status();
  for (const v1::Stage stage : *stages) request->add_stages(stage);
  return absl::OkStatus();
}

template <typename Reply>
absl::Status Print(const Global& global, const Reply& reply, bool full) {
  if (global.json) {
    PrintJson(reply);
    return absl::OkStatus();
  }
  const absl::Status status = PrintStages(reply.stages(), /*layers=*/true, full);
  return status.ok() ? PrintTensor("output", reply.output(), full) : status;
}

absl::Status Forward(const Global& global, const StepFlags& flags) {
  const auto client = Connect(global);
  if (!client.ok()) return client.status();
  v1::ForwardRequest request;
  request.set_model(flags.model);
  absl::Status status = FillCommon(*client, flags, flags.model, &request);
  if (!status.ok()) return status;
  const auto reply = client->Forward(request);
  return reply.ok() ? Print(global, *reply, flags.full) : reply.status();
}

absl::Status Decode(const Global& global, const StepFlags& flags) {
  const auto client = Connect(global);
  if (!client.ok()) return client.status();
  const auto state = client->GetSession(flags.session);
  if (!state.ok()) return state.status();
  v1::DecodeRequest request;
  absl::Status status = FillCommon(*client, flags, state->model(), &request);
  if (!status.ok()) return status;
  auto session = client->AttachSession(flags.session);
  if (!session.ok()) return session.status();
  const auto reply = session->Decode(std::move(request));
  if (!reply.ok()) return reply.status();
  if (!global.json) {
    std::printf("tokens %lld to %lld\n", static_cast<long long>(reply->position()),
                static_cast<long long>(reply->length()));
  }
  return Print(global, *reply, flags.full);
}

// A session that stays, for decode.
absl::Status CreateSession(const Global& global, const StepFlags& flags) {
  const auto client = Connect(global);
  if (!client.ok()) return client.status();
  v1::CreateSessionRequest request;
  request.set_session_id(flags.session);
  request.set_model(flags.model);
  auto session = client->CreateSession(request);
  if (!session.ok()) return session.status();
  if (global.json) {
    PrintJson(session->created());
  } else {
    std::printf("%s\n", session->id().c_str());
  }
  session->Detach();
  return absl::OkStatus();
}

void AddInputs(CLI::App* app, StepFlags* flags) {
  app->add_option("--layer", flags->layer, "Layer; default all, in order")->check(Count(0));
  CLI::App* input = app->add_option_group("Input", "The new tokens.")->require_option(1);
  input->add_option("--x", flags->x, "[T, width] as JSON, x.json or x.safetensors#NAME")
      ->check(SomeText());
  input->add_option("--random", flags->random, "So many random tokens")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--seed", flags->seed, "Seed of --random");
  app->add_option("--context", flags->context, "Context of cross-attention [S, width]")
      ->check(SomeText());
  app->add_option("--stages", flags->stages,
                  "Also show: scores, softcapped, masked, weights, lse, context")
      ->check(StageNames());
  app->add_flag("--full", flags->full, "Print large tensors whole");
}

}  // namespace

void AddStepCommands(CLI::App* app) {
  auto flags = std::make_shared<StepFlags>();
  CLI::App* forward = app->add_subcommand("forward", "Run a sequence through layers, keep nothing");
  forward->add_option("--model", flags->model, "Served model; default the only one");
  AddInputs(forward, flags.get());
  forward->footer("Example:\n  attnctl forward --layer 0 --random 5 --stages weights");
  SetCommand(forward, [flags](const Global& global) { return Forward(global, *flags); });

  CLI::App* create = app->add_subcommand("create", "Create a session over a model, print its id");
  create->add_option("--model", flags->model, "Served model; default the only one");
  create->add_option("--session", flags->session, "Id of your choice; default a random one");
  create->footer("Example:\n  attnctl create --session my-session");
  SetCommand(create, [flags](const Global& global) { return CreateSession(global, *flags); });

  CLI::App* decode = app->add_subcommand("decode", "Append tokens to a session and attend");
  decode->add_option("--session", flags->session, "The session")->required();
  AddInputs(decode, flags.get());
  decode->footer(
      "Example:\n  attnctl create --session my-session\n"
      "  attnctl decode --session my-session --layer 0 --random 1");
  SetCommand(decode, [flags](const Global& global) { return Decode(global, *flags); });
}

}  // namespace attnserve::ctl
