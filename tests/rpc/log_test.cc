#include "server/log.h"

#include <string>

#include "gtest/gtest.h"
#include "server/time_conversion.h"

namespace attnserve {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

TEST(Log, LineHasTimeLevelEventAndFields) {
  const system_clock::time_point time(std::chrono::seconds(1767323045) + milliseconds(678));
  EXPECT_EQ(FormatLogLine(time, LogLevel::kInfo, "model_loaded", {{"name", "demo"}, {"layers", 6}}),
            "2026-01-02T03:04:05.678Z INFO event=\"model_loaded\" name=demo layers=6\n");
}

TEST(Log, ValuesAreQuotedWhereNeeded) {
  const auto line = [](const char* value) {
    const std::string all = FormatLogLine({}, LogLevel::kError, "e", {{"k", value}});
    return all.substr(all.find(" k=") + 3);
  };
  EXPECT_EQ(line("127.0.0.1:50051"), "127.0.0.1:50051\n");
  EXPECT_EQ(line(""), "\"\"\n");
  EXPECT_EQ(line("two words"), "\"two words\"\n");
  EXPECT_EQ(line("a\"b\\c"), "\"a\\\"b\\\\c\"\n");
  EXPECT_EQ(line("a\nb\rc\x01"), "\"a\\nb\\x0dc\\x01\"\n");
  EXPECT_EQ(line("x=y"), "\"x=y\"\n");
}

TEST(Log, LevelsFilter) {
  SetLogLevel(LogLevel::kWarning);
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
  EXPECT_TRUE(LogEnabled(LogLevel::kWarning));
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  SetLogLevel(LogLevel::kDebug);
  EXPECT_TRUE(LogEnabled(LogLevel::kDebug));
  SetLogLevel(LogLevel::kInfo);
}

TEST(Log, LineIsWrittenToStderr) {
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kDebug, "hidden", {});
  Log(LogLevel::kInfo, "shown", {{"k", 1}});
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("hidden"), std::string::npos);
  EXPECT_NE(text.find("INFO event=\"shown\" k=1\n"), std::string::npos);
}

google::protobuf::Duration Duration(int64_t seconds, int32_t nanos) {
  google::protobuf::Duration duration;
  duration.set_seconds(seconds);
  duration.set_nanos(nanos);
  return duration;
}

TEST(TimeConversion, DurationsAreRoundedUp) {
  EXPECT_EQ(*PositiveDurationFromProto("ttl", Duration(2, 0)), milliseconds(2000));
  EXPECT_EQ(*PositiveDurationFromProto("ttl", Duration(0, 1)), milliseconds(1));
  EXPECT_EQ(*PositiveDurationFromProto("ttl", Duration(1, 1000001)), milliseconds(1002));
}

TEST(TimeConversion, AbsurdDurationsAreRefused) {
  for (const auto& [seconds, nanos] : {std::pair<int64_t, int32_t>{0, 0},
                                       {-1, 0},
                                       {0, -1},
                                       {INT64_MAX, 0},
                                       {INT64_MIN, 0},
                                       {1, 1000000000},
                                       {int64_t{24} * 3600 * 365 * 10 + 1, 0}}) {
    EXPECT_FALSE(PositiveDurationFromProto("ttl", Duration(seconds, nanos)).ok()) << seconds;
  }
}

TEST(TimeConversion, TimesBeforeTheEpochKeepPositiveNanos) {
  const google::protobuf::Timestamp stamp = TimeToProto(system_clock::time_point(milliseconds(-1)));
  EXPECT_EQ(stamp.seconds(), -1);
  EXPECT_EQ(stamp.nanos(), 999000000);
}

}  // namespace
}  // namespace attnserve
