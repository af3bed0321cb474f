#include "server/time_conversion.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"

namespace attnserve {

google::protobuf::Timestamp TimeToProto(std::chrono::system_clock::time_point time) {
  const auto since_epoch = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  google::protobuf::Timestamp proto;
  proto.set_seconds(seconds.count());
  proto.set_nanos(static_cast<int32_t>(std::chrono::nanoseconds(since_epoch - seconds).count()));
  return proto;
}

google::protobuf::Duration DurationToProto(std::chrono::milliseconds duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(duration.count() / 1000);
  proto.set_nanos(static_cast<int32_t>(duration.count() % 1000 * 1000000));
  return proto;
}

absl::StatusOr<std::chrono::milliseconds> PositiveDurationFromProto(
    std::string_view field, const google::protobuf::Duration& proto) {
  const int64_t seconds = proto.seconds();
  const int32_t nanos = proto.nanos();
  const int64_t most = std::chrono::seconds(kMaxDuration).count();
  const bool valid = seconds >= 0 && seconds <= most && nanos >= 0 && nanos < 1000000000 &&
                     (seconds > 0 || nanos > 0);
  if (!valid) {
    return BadOption(field, absl::StrCat("is ", seconds, " s and ", nanos,
                                         " ns; expected more than 0 and at most ", most, " s"));
  }
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::seconds(seconds) +
                                                      std::chrono::nanoseconds(nanos));
}

}  // namespace attnserve
