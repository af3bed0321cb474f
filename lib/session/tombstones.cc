#include "lib/session/tombstones.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"

namespace attnserve {

void Tombstones::Add(Tombstone tombstone) {
  const auto too_old = [&](const Tombstone& oldest) {
    return tombstone.end_time_steady - oldest.end_time_steady >= kAge;
  };
  while (!list_.empty() && (list_.size() >= kCount || too_old(list_.front()))) {
    const auto it = latest_.find(list_.front().id);
    if (it != latest_.end() && it->second == first_) latest_.erase(it);
    list_.pop_front();
    ++first_;
  }
  latest_[tombstone.id] = first_ + static_cast<int64_t>(list_.size());
  list_.push_back(std::move(tombstone));
}

absl::Status Tombstones::WhyGone(std::string_view id,
                                 std::chrono::steady_clock::time_point now) const {
  const auto it = latest_.find(std::string(id));
  if (it == latest_.end()) return SessionNotFound(id);
  const Tombstone& tombstone = list_[static_cast<size_t>(it->second - first_)];
  if (tombstone.reason != EndReason::kExpired || now - tombstone.end_time_steady >= kAge) {
    return SessionNotFound(id);
  }
  return SessionExpired(id, tombstone.ttl.count());
}

std::vector<Tombstone> Tombstones::Latest(size_t limit,
                                          std::chrono::steady_clock::time_point now) const {
  std::vector<Tombstone> latest;
  for (auto it = list_.rbegin(); it != list_.rend() && latest.size() < limit; ++it) {
    if (now - it->end_time_steady >= kAge) break;
    latest.push_back(*it);
  }
  return latest;
}

absl::Status CheckSessionId(std::string_view field, std::string_view id) {
  const auto legal = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '~' ||
           c == '-';
  };
  constexpr char kExpected[] = "; expected 1 to 128 of [A-Za-z0-9._~-]";
  if (id.empty() || id.size() > 128) {
    return BadOption(field, absl::StrCat("came with ", id.size(), " characters", kExpected));
  }
  const auto illegal = std::find_if_not(id.begin(), id.end(), legal);
  if (illegal == id.end()) return absl::OkStatus();
  return BadOption(field, absl::StrCat("has '", absl::CEscape(absl::string_view(&*illegal, 1)),
                                       "' as character ", illegal - id.begin() + 1, kExpected));
}

std::string RandomId() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    absl::StrAppend(&id, absl::Hex(static_cast<uint32_t>(device()), absl::kZeroPad8));
  }
  return id;
}

}  // namespace attnserve
