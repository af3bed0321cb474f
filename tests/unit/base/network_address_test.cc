#include "lib/base/network_address.h"

#include "gtest/gtest.h"

namespace attnserve {
namespace {

TEST(NetworkAddress, HostAndPort) {
  for (const char* address : {"127.0.0.1:50051", "localhost:1", "[::1]:65535", "a.b-c:80"}) {
    EXPECT_TRUE(IsHostAndPort(address, 1)) << address;
  }
  for (const char* address :
       {"", ":", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:+1", "host: 1",
        "host:1x", "::1:50051", "[]:1", "[::1]", "http://host:1", "ho st:1", "unix:/a:1"}) {
    EXPECT_FALSE(IsHostAndPort(address, 1)) << address;
  }
  EXPECT_TRUE(IsHostAndPort("host:0", 0));
}

TEST(NetworkAddress, UnixAddress) {
  EXPECT_TRUE(IsUnixAddress("unix:/a"));
  EXPECT_TRUE(IsUnixAddress("unix:a"));
  EXPECT_FALSE(IsUnixAddress("unix:"));
  EXPECT_FALSE(IsUnixAddress("/unix:a"));
}

}  // namespace
}  // namespace attnserve
