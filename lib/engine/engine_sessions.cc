#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"
#include "lib/engine/engine_impl.h"

namespace attnserve {
namespace {

// Of all core layers of a session: what a session holds beside its cache is no part of the budget.
constexpr int64_t kMaxCoreHeads = int64_t{1} << 16;
constexpr int64_t kMaxCoreNumbers = int64_t{1} << 18;

// Numbers that a layer brings along, each with an array of its own.
int64_t NumbersOf(const AttentionOptions& options) {
  size_t numbers = options.sink_logits.size();
  for (const HeadNorm* norm : {&options.query_norm, &options.key_norm}) {
    numbers += norm->weight.size() + norm->bias.size();
  }
  const auto* alibi = std::get_if<AlibiPosition>(&options.position);
  return static_cast<int64_t>(numbers + (alibi != nullptr ? alibi->slopes.size() : 0));
}

using CoreLayers = std::vector<std::unique_ptr<AttentionLayer>>;

bool ExpiredAt(const SessionEntry& entry, std::chrono::steady_clock::time_point now) {
  return !entry.running && entry.waiting.empty() &&
         now - entry.last_used >= entry.session->options().ttl;
}

// Names, layers and limits of the session to be.
absl::StatusOr<SessionOptions> ResolveOptions(const CreateSessionOptions& options,
                                              std::chrono::milliseconds default_ttl) {
  SessionOptions result;
  if (!options.id.empty()) {
    ATTNSERVE_RETURN_IF_ERROR(CheckSessionId("session_id", options.id));
  }
  result.id = options.id.empty() ? RandomId() : options.id;
  result.max_tokens = options.max_tokens;
  if (options.model != nullptr) {
    result.model_name = options.model->name();
    for (const auto& layer : options.model->layers()) result.layers.push_back(layer.get());
    result.layer_owner = options.model;
    const int64_t limit = options.model->max_tokens();
    if (result.max_tokens == 0) result.max_tokens = limit;
    if (limit > 0 && result.max_tokens > limit) {
      return BadOption("max_tokens", absl::StrCat("is ", result.max_tokens,
                                                  "; the model's own limit is ", limit));
    }
  } else {
    auto layers = std::make_shared<CoreLayers>();
    int64_t heads = 0, numbers = 0;
    for (const LayerSpec& spec : options.core_layers) {
      heads += std::max<int64_t>(0, spec.head_count);
      if (heads > kMaxCoreHeads) {
        return TooLarge("core.layers",
                        absl::StrCat("have more than ", kMaxCoreHeads, " heads together"));
      }
      numbers += NumbersOf(spec.attention);
      if (numbers > kMaxCoreNumbers) {
        return TooLarge("core.layers", absl::StrCat("have more than ", kMaxCoreNumbers,
                                                    " norm weights, biases, sinks and slopes "
                                                    "together"));
      }
      ATTNSERVE_ASSIGN_OR_RETURN(layers->emplace_back(), AttentionLayer::CreateCore(spec));
      result.layers.push_back(layers->back().get());
    }
    result.layer_owner = std::move(layers);
  }
  if (options.max_tokens < 0) {
    return BadOption("max_tokens", absl::StrCat("is ", options.max_tokens, "; expected >= 0"));
  }
  if (options.reserve && result.max_tokens == 0) {
    return BadOption("reserve", "needs max_tokens: there is no limit to reserve memory for");
  }
  if (options.ttl < std::chrono::milliseconds(0)) {
    return BadOption("ttl", absl::StrCat("is ", options.ttl.count(), " ms; expected >= 0"));
  }
  result.reserve = options.reserve;
  result.ttl = options.ttl.count() > 0 ? options.ttl : default_ttl;
  result.override_cache_dtype = options.override_cache_dtype;
  result.cache_dtype = options.cache_dtype;
  return result;
}

}  // namespace

Engine::Impl::Entry Engine::Impl::Find(std::string_view id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return nullptr;
  Entry entry = it->second;
  if (ExpiredAt(*entry, options_.clock())) {
    End(entry, EndReason::kExpired);
    return nullptr;
  }
  return entry;
}

void Engine::Impl::End(const Entry& entry, EndReason reason) {
  Tombstone tombstone;
  tombstone.id = entry->info.id;
  tombstone.generation = entry->info.generation;
  tombstone.reason = reason;
  tombstone.ttl = entry->info.ttl;
  tombstone.end_time = std::chrono::system_clock::now();
  tombstone.end_time_steady = options_.clock();
  tombstones_.Add(std::move(tombstone));
  sessions_.erase(entry->info.id);
  observer_.OnSessionEnded(reason);
}

void Engine::Impl::ExpireIdle() {
  const auto now = options_.clock();
  std::vector<Entry> expired;
  for (const auto& [id, entry] : sessions_) {
    if (ExpiredAt(*entry, now)) expired.push_back(entry);
  }
  for (const Entry& entry : expired) End(entry, EndReason::kExpired);
}

void Engine::Impl::Enqueue(const Entry& entry, std::unique_ptr<Work> work) {
  work->entry = entry;
  if (entry->running || !entry->waiting.empty()) {
    entry->waiting.push_back(std::move(work));
    return;
  }
  entry->running = true;
  PushReady(std::move(work));
}

void Engine::Impl::PushReady(std::unique_ptr<Work> work) {
  ready_.push_back(std::move(work));
  steps_ready_.store(true, std::memory_order_relaxed);
  work_arrived_.NotifyOne();
}

SessionInfo Engine::Impl::Snapshot(const SessionEntry& entry) const {
  SessionInfo info = entry.info;
  info.pending_count = static_cast<int64_t>(entry.waiting.size()) + (entry.running ? 1 : 0);
  const auto idle =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.clock() - entry.last_used);
  info.expires_in =
      info.pending_count > 0 ? info.ttl : std::max(std::chrono::milliseconds(0), info.ttl - idle);
  return info;
}

absl::StatusOr<CreatedSession> Engine::Impl::CreateSession(const CreateSessionOptions& options) {
  ATTNSERVE_ASSIGN_OR_RETURN(SessionOptions resolved,
                             ResolveOptions(options, options_.default_session_ttl));
  int64_t generation = 0;
  {
    MutexLock lock(mutex_);
    if (draining_) return Draining();
    ExpireIdle();
    if (sessions_.count(resolved.id) > 0) return SessionExists(resolved.id);
    if (static_cast<int64_t>(sessions_.size()) >= options_.limits.max_sessions) {
      return SessionLimit(options_.limits.max_sessions);
    }
    generation = next_generation_++;
  }
  ATTNSERVE_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                             Session::Create(std::move(resolved), generation, &session_pool_));
  CreatedSession created;
  created.bytes_per_token = session->BytesPerToken();
  created.bytes_per_block = session->BytesPerBlock();
  auto entry = std::make_shared<SessionEntry>();
  entry->info = session->Info();
  entry->session = std::move(session);
  entry->last_used = options_.clock();
  created.reserved_bytes = entry->info.owned_bytes;

  MutexLock lock(mutex_);
  if (!sessions_.emplace(entry->info.id, entry).second) return SessionExists(entry->info.id);
  observer_.OnSessionCreated();
  created.info = Snapshot(*entry);
  work_arrived_.NotifyOne();  // the scheduler looks after expiry from now on
  return created;
}

absl::StatusOr<SessionInfo> Engine::Impl::GetSession(const std::string& id) {
  MutexLock lock(mutex_);
  const Entry entry = Find(id);
  if (entry == nullptr) return tombstones_.WhyGone(id, options_.clock());
  return Snapshot(*entry);
}

SessionPage Engine::Impl::ListSessions(int64_t page_size, const std::string& page_token,
                                       bool show_ended) {
  constexpr size_t kMostEnded = 1000;
  SessionPage page;
  MutexLock lock(mutex_);
  ExpireIdle();
  auto it = sessions_.upper_bound(page_token);
  for (; it != sessions_.end() && static_cast<int64_t>(page.sessions.size()) < page_size; ++it) {
    page.sessions.push_back(Snapshot(*it->second));
  }
  if (it != sessions_.end()) page.next_page_token = page.sessions.back().id;
  if (show_ended && page_token.empty()) {
    page.ended = tombstones_.Latest(kMostEnded, options_.clock());
  }
  return page;
}

void Engine::Impl::SubmitSession(SessionCall* call) {
  const std::string_view id = call->session_id;
  absl::Status status;
  {
    MutexLock lock(mutex_);
    const Entry entry = Find(id);
    status = CheckQueue(*call);
    if (status.ok() && entry == nullptr && call->kind != SessionCall::Kind::kDelete) {
      status = tombstones_.WhyGone(id, options_.clock());
    }
    if (status.ok() && entry != nullptr) {
      Count(*call);
      Enqueue(entry, MakeSessionWork(call, context_));
      return;
    }
  }
  if (!status.ok()) return Reject(call, status);
  call->sink->Done(absl::OkStatus());
}

}  // namespace attnserve
