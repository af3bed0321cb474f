// Why sessions ended.
#ifndef ATTNSERVE_LIB_SESSION_TOMBSTONES_H_
#define ATTNSERVE_LIB_SESSION_TOMBSTONES_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"

namespace attnserve {

enum class EndReason { kDeleted, kExpired };

// A session that has ended.
struct Tombstone {
  std::string id;
  int64_t generation = 0;
  EndReason reason = EndReason::kDeleted;
  std::chrono::milliseconds ttl{0};
  std::chrono::system_clock::time_point end_time;
  std::chrono::steady_clock::time_point end_time_steady;
};

// Remembers the last kCount sessions that ended, each for kAge. Not thread-safe.
class Tombstones {
 public:
  static constexpr size_t kCount = 10000;
  static constexpr std::chrono::hours kAge{1};

  void Add(Tombstone tombstone);

  // SESSION_EXPIRED or SESSION_NOT_FOUND, for a session that does not live.
  absl::Status WhyGone(std::string_view id, std::chrono::steady_clock::time_point now) const;

  // Latest first, at most `limit`.
  std::vector<Tombstone> Latest(size_t limit, std::chrono::steady_clock::time_point now) const;

 private:
  std::deque<Tombstone> list_;  // oldest first
  // The latest tombstone of each id: its number since the start. list_ begins with number first_.
  std::unordered_map<std::string, int64_t> latest_;
  int64_t first_ = 0;
};

// A session id of the client's choice is 1 to 128 of [A-Za-z0-9._~-]. BAD_OPTION otherwise.
absl::Status CheckSessionId(std::string_view field, std::string_view id);

// 128 random bits in hexadecimal.
std::string RandomId();

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_SESSION_TOMBSTONES_H_
