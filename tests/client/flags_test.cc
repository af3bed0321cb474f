#include "client/attnctl/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attnserve::ctl {
namespace {

using ::testing::HasSubstr;

std::string Problem(const CLI::Validator& validator, std::string text) { return validator(text); }

TEST(Count, AcceptsWholeNumbersInRange) {
  for (const char* text : {"1", "7", "2147483647"}) EXPECT_EQ(Problem(Count(1), text), "") << text;
  EXPECT_EQ(Problem(Count(0, 3), "0"), "");
  EXPECT_EQ(Problem(Count(0, 3), "3"), "");
}

TEST(Count, SaysWhatWasExpectedInFewWords) {
  for (const char* text : {"0", "-1", "x", "", "1.5", "99999999999999999999"}) {
    EXPECT_EQ(Problem(Count(1), text), "\"" + std::string(text) + "\": expected 1 or more");
  }
  EXPECT_EQ(Problem(Count(1), "2147483648"), "\"2147483648\": expected 1 to 2147483647");
  EXPECT_EQ(Problem(Count(0, 3), "4"), "\"4\": expected 0 to 3");
  EXPECT_EQ(Problem(Count(0, 3), "-1"), "\"-1\": expected 0 to 3");
}

TEST(SomeText, IsNotEmpty) {
  EXPECT_EQ(Problem(SomeText(), "[[1]]"), "");
  EXPECT_THAT(Problem(SomeText(), ""), HasSubstr("is empty"));
}

TEST(StageNames, AreThoseOfTheInterface) {
  EXPECT_EQ(Problem(StageNames(), "scores,weights"), "");
  EXPECT_THAT(Problem(StageNames(), "scores,foo"), HasSubstr("\"foo\" is none of scores"));
}

TEST(ServerAddress, IsHostAndPortOrAUnixSocket) {
  for (const char* address : {"127.0.0.1:50051", "host:1", "[::1]:2", "unix:/run/a.sock"}) {
    EXPECT_EQ(CheckServerAddress(address), "") << address;
  }
  for (const char* address :
       {"", "models", "host:0", "host:65536", "http://host:1", "unix:", ":50051"}) {
    EXPECT_EQ(CheckServerAddress(address),
              "\"" + std::string(address) + "\": expected host:port or unix:/path");
  }
}

}  // namespace
}  // namespace attnserve::ctl
