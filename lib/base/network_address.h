// Addresses as people type them.
#ifndef ATTNSERVE_LIB_BASE_NETWORK_ADDRESS_H_
#define ATTNSERVE_LIB_BASE_NETWORK_ADDRESS_H_

#include <string>

namespace attnserve {

// Whether `address` is "host:port" or "[v6]:port" with a port from `least_port` to 65535. Whether
// the host exists is not asked.
bool IsHostAndPort(const std::string& address, int least_port);

// Whether `address` is "unix:" and a path.
bool IsUnixAddress(const std::string& address);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_BASE_NETWORK_ADDRESS_H_
