#include "lib/base/network_address.h"

#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace attnserve {

bool IsHostAndPort(const std::string& address, int least_port) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < least_port || port > 65535 ||
      !absl::ascii_isdigit(static_cast<unsigned char>(address[colon + 1]))) {
    return false;
  }
  const std::string host = address.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed || host.find_first_of(":[]/ ") == std::string::npos;
}

bool IsUnixAddress(const std::string& address) {
  constexpr std::string_view kUnix = "unix:";
  return address.size() > kUnix.size() && address.compare(0, kUnix.size(), kUnix) == 0;
}

}  // namespace attnserve
