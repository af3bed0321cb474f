// sessions, reset, truncate: who holds which tokens.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/attnctl/command.h"
#include "client/attnctl/flags.h"
#include "client/attnctl/table.h"

namespace attnserve::ctl {
namespace {

std::string Lengths(const v1::Session& session) {
  int64_t least = session.min_length(), most = least;
  for (const v1::SessionLayer& layer : session.layers()) most = std::max(most, layer.length());
  return least == most ? absl::StrCat(least) : absl::StrCat(least, " to ", most);
}

void PrintSessions(const std::vector<v1::Session>& sessions) {
  std::vector<std::vector<std::string>> rows = {
      {"SESSION", "MODEL", "LAYERS", "TOKENS", "BYTES", "EXPIRES IN"}};
  for (const v1::Session& session : sessions) {
    rows.push_back({session.session_id(), session.model().empty() ? "core" : session.model(),
                    absl::StrCat(session.layers_size()), Lengths(session),
                    Bytes(session.owned_bytes()),
                    absl::StrCat(session.expires_in().seconds(), " s")});
  }
  PrintTable(rows);
}

absl::Status PrintSession(const absl::StatusOr<v1::Session>& session, bool json) {
  if (!session.ok()) return session.status();
  if (json) {
    PrintJson(*session);
    return absl::OkStatus();
  }
  PrintSessions({*session});
  std::vector<std::vector<std::string>> rows = {{"LAYER", "TOKENS", "CACHE", "CONTEXT"}};
  for (const v1::SessionLayer& layer : session->layers()) {
    rows.push_back(
        {absl::StrCat(rows.size() - 1), absl::StrCat(layer.length()), Bytes(layer.kv_bytes()),
         layer.context_length() == 0
             ? "-"
             : absl::StrCat(layer.context_length(), " keys, ", Bytes(layer.context_bytes()))});
  }
  std::printf("\n");
  PrintTable(rows);
  return absl::OkStatus();
}

absl::Status List(const client::Client& client, bool ended, bool json) {
  const auto list = client.ListSessions(ended);
  if (!list.ok()) return list.status();
  if (json) {
    v1::ListSessionsResponse all;
    for (const v1::Session& session : list->sessions) *all.add_sessions() = session;
    for (const v1::EndedSession& session : list->ended) *all.add_ended() = session;
    PrintJson(all);
    return absl::OkStatus();
  }
  PrintSessions(list->sessions);
  if (!ended) return absl::OkStatus();
  std::vector<std::vector<std::string>> rows = {{"ENDED SESSION", "WHY"}};
  for (const v1::EndedSession& session : list->ended) {
    const bool expired = session.reason() == v1::EndedSession::REASON_EXPIRED;
    rows.push_back({session.session_id(), expired ? "idle for too long" : "deleted"});
  }
  PrintTable(rows);
  return absl::OkStatus();
}

struct SessionFlags {
  std::string id;
  bool remove = false;
  bool ended = false;
  std::vector<int32_t> layers;
  int64_t length = 0;
};

absl::Status Delete(const client::Client& client, const std::string& id, bool json) {
  const auto existed = client.DeleteSession(id);
  if (!existed.ok()) return existed.status();
  if (!*existed) {
    return absl::NotFoundError(
        absl::StrCat("no session is called \"", id, "\"; \"attnctl sessions\" lists them"));
  }
  if (json) {
    std::printf("{\"deleted\": true}\n");
  } else {
    std::printf("deleted %s\n", id.c_str());
  }
  return absl::OkStatus();
}

absl::Status Sessions(const Global& global, const SessionFlags& flags) {
  const auto client = Connect(global);
  if (!client.ok()) return client.status();
  if (flags.remove) return Delete(*client, flags.id, global.json);
  if (flags.id.empty()) return List(*client, flags.ended, global.json);
  return PrintSession(client->GetSession(flags.id), global.json);
}

// Runs `change` on a session that stays on the server.
template <typename Change>
absl::Status OnSession(const Global& global, const std::string& id, Change change) {
  const auto client = Connect(global);
  if (!client.ok()) return client.status();
  auto session = client->AttachSession(id);
  if (!session.ok()) return session.status();
  return PrintSession(change(*session), global.json);
}

}  // namespace

void AddSessionCommands(CLI::App* app) {
  auto flags = std::make_shared<SessionFlags>();
  CLI::App* sessions = app->add_subcommand("sessions", "List sessions; show or delete one");
  CLI::Option* id = sessions->add_option("ID", flags->id, "Show this session only");
  sessions->add_flag("--delete", flags->remove, "Delete it")->needs(id);
  sessions->add_flag("--ended", flags->ended, "Also list those that have ended, and why")
      ->excludes(id);
  sessions->footer("Examples:\n  attnctl sessions\n  attnctl sessions my-session --delete");
  SetCommand(sessions, [flags](const Global& global) { return Sessions(global, *flags); });

  CLI::App* reset = app->add_subcommand("reset", "Drop the cached tokens of a session");
  reset->add_option("ID", flags->id, "The session")->required();
  reset->add_option("--layer", flags->layers, "Only of this layer; may be repeated")
      ->check(Count(0));
  reset->footer("Example:\n  attnctl reset my-session");
  SetCommand(reset, [flags](const Global& global) {
    return OnSession(global, flags->id,
                     [&](client::Session& session) { return session.ResetCache(flags->layers); });
  });

  CLI::App* truncate = app->add_subcommand("truncate", "Roll a session back to fewer tokens");
  truncate->add_option("ID", flags->id, "The session")->required();
  truncate->add_option("--length", flags->length, "Tokens to keep in every layer")
      ->required()
      ->check(Count(0));
  truncate->footer("Example:\n  attnctl truncate my-session --length 100");
  SetCommand(truncate, [flags](const Global& global) {
    return OnSession(global, flags->id,
                     [&](client::Session& session) { return session.Truncate(flags->length); });
  });
}

}  // namespace attnserve::ctl
