#include "client/attnctl/command.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attnserve::ctl {
namespace {

Command& Chosen() {
  static auto& command = *new Command();
  return command;
}

// Turns `data` of every tensor in `message` into `values`.
void WriteTensorsAsValues(google::protobuf::Message* message) {
  if (message->GetDescriptor() == v1::Tensor::descriptor()) {
    auto* tensor = static_cast<v1::Tensor*>(message);
    const absl::StatusOr<std::vector<float>> values = client::ToFloats(*tensor);
    if (!values.ok()) return;
    tensor->clear_data();
    *tensor->mutable_values() = {values->begin(), values->end()};
    return;
  }
  const google::protobuf::Reflection* reflection = message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      WriteTensorsAsValues(reflection->MutableMessage(message, field));
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
      WriteTensorsAsValues(reflection->MutableRepeatedMessage(message, field, i));
    }
  }
}

// The option that sets a field of a request, named by its path; empty where none does or both have
// the same name.
std::string FlagOf(const std::string& field) {
  static const auto& flags = *new std::map<std::string, std::string>{
      {"x", "--x or --random"},       {"past_key", "--past-key"},
      {"past_value", "--past-value"}, {"attention_mask", "--mask"},
      {"head_count", "--heads"},      {"kv_head_count", "--kv-heads"},
      {"session_id", "--session"},    {"key_head_size", "--head-size"},
      {"left", "--window"},           {"right", "--window"}};
  const auto found = flags.find(field.substr(field.rfind('.') + 1));
  return found == flags.end() ? "" : found->second;
}

// What a user can do about an error, as a line to follow it; empty where its message says it all.
std::string Advice(const absl::Status& status, const std::string& reason) {
  if (absl::IsUnavailable(status) && reason.empty()) {
    return "  start one with \"attnserve\", or name another with --server\n";
  }
  if (absl::IsDeadlineExceeded(status)) return "  --timeout allows for more time\n";
  if (reason == "MODEL_NOT_FOUND") return "  \"attnctl models\" lists what is served\n";
  if (reason == "LAYER_NOT_FOUND") return "  \"attnctl models NAME\" lists a model's layers\n";
  if (reason == "SESSION_NOT_FOUND" || reason == "SESSION_EXPIRED") {
    return "  \"attnctl sessions --ended\" lists sessions, \"attnctl create\" makes one\n";
  }
  if (reason == "KV_BUDGET" || reason == "SESSION_LIMIT") {
    return "  \"attnctl sessions\" lists who holds what, \"attnctl sessions ID --delete\" ends "
           "one\n";
  }
  for (const client::FieldViolation& violation : client::GetFieldViolations(status)) {
    const std::string flag = FlagOf(violation.field);
    if (!flag.empty()) return absl::StrCat("  ", violation.field, " is what ", flag, " sets\n");
  }
  return "";
}

// Leaves out `data` where a tensor has none.
void DropEmptyData(nlohmann::ordered_json* value) {
  if (!value->is_structured()) return;
  if (value->contains("dtype") && value->value("data", "-").empty()) value->erase("data");
  for (nlohmann::ordered_json& part : *value) DropEmptyData(&part);
}

}  // namespace

void SetCommand(CLI::App* app, Command command) {
  app->fallthrough();  // --json and the like may come behind the command's name
  app->footer(app->get_footer() + "\n\n--server, --json and --timeout work here too.");
  app->callback([command = std::move(command)] { Chosen() = command; });
}

const Command& ChosenCommand() { return Chosen(); }

absl::StatusOr<client::Client> Connect(const Global& global) {
  client::ClientOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(global.timeout_seconds * 1e3));
  return client::Client::Connect(global.server, options);
}

void PrintJson(const google::protobuf::Message& message) {
  const std::unique_ptr<google::protobuf::Message> readable(message.New());
  readable->CopyFrom(message);
  WriteTensorsAsValues(readable.get());
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (google::protobuf::util::MessageToJsonString(*readable, &text, options).ok()) {
    auto json = nlohmann::ordered_json::parse(text);
    DropEmptyData(&json);
    std::printf("%s\n", json.dump(1).c_str());
  }
}

std::string JsonString(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void PrintError(const Global& global, const absl::Status& status) {
  const std::optional<client::ErrorInfo> info = client::GetErrorInfo(status);
  const std::string reason = info.has_value() ? info->reason : "";
  const std::string code = absl::StatusCodeToString(status.code());
  const std::string message(status.message());
  if (global.json) {
    const nlohmann::ordered_json error = {
        {"code", code},
        {"reason", reason},
        {"message", message},
        {"metadata", info.has_value() ? info->metadata : std::map<std::string, std::string>()}};
    std::fprintf(stderr, "%s\n",
                 error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  std::fprintf(stderr, "attnctl: %s%s%s: %s\n%s", code.c_str(), reason.empty() ? "" : " ",
               reason.c_str(), message.c_str(), Advice(status, reason).c_str());
}

int ExitCode(const absl::Status& status) {
  if (status.ok()) return 0;
  return absl::IsUnavailable(status) && client::ErrorReason(status).empty() ? 3 : 1;
}

bool ShowsProgress() { return isatty(STDERR_FILENO) != 0; }

}  // namespace attnserve::ctl
