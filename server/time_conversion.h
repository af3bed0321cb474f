// Points in time and durations between std::chrono and protobuf.
#ifndef ATTNSERVE_SERVER_TIME_CONVERSION_H_
#define ATTNSERVE_SERVER_TIME_CONVERSION_H_

#include <chrono>
#include <string_view>

#include "absl/status/statusor.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace attnserve {

// Longest duration a request may name: far from any overflow of a clock's nanoseconds.
inline constexpr std::chrono::hours kMaxDuration{24 * 365 * 10};

google::protobuf::Timestamp TimeToProto(std::chrono::system_clock::time_point time);
google::protobuf::Duration DurationToProto(std::chrono::milliseconds duration);

// Rounded up to whole milliseconds. BAD_OPTION unless 0 < duration <= kMaxDuration.
absl::StatusOr<std::chrono::milliseconds> PositiveDurationFromProto(
    std::string_view field, const google::protobuf::Duration& proto);

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_TIME_CONVERSION_H_
