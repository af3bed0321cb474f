// What values on the command line may be, said in few words. (CLI11's own checks of open ranges
// print the limits of a double.)
#ifndef ATTNSERVE_CLIENT_ATTNCTL_FLAGS_H_
#define ATTNSERVE_CLIENT_ATTNCTL_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace attnserve::ctl {

// The greatest count where nothing else bounds it.
inline constexpr int64_t kManyCount = std::numeric_limits<int32_t>::max();

// A whole number from `least` to `most`.
CLI::Validator Count(int64_t least, int64_t most = kManyCount);

// Anything but "", which a script passes whose variable is not set.
CLI::Validator SomeText();

// A list as ParseStages takes it.
CLI::Validator StageNames();

// "" for host:port and unix:/path, else what was expected.
std::string CheckServerAddress(const std::string& address);

}  // namespace attnserve::ctl

#endif  // ATTNSERVE_CLIENT_ATTNCTL_FLAGS_H_
