#include "server/log.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <ctime>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace attnserve {
namespace {

std::atomic<LogLevel> log_level{LogLevel::kInfo};

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "ERROR";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kDebug:
      return "DEBUG";
  }
  return "?";
}

bool IsPlain(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("._:/+@%-").find(c) != std::string_view::npos;
}

std::string Quoted(std::string_view value) {
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<int>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string TimeStamp(std::chrono::system_clock::time_point time) {
  const auto millis = std::chrono::floor<std::chrono::milliseconds>(time);
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(time));
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  const int64_t fraction = millis.time_since_epoch().count() - int64_t{1000} * seconds;
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900,
                         parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                         fraction);
}

}  // namespace

void SetLogLevel(LogLevel level) { log_level.store(level, std::memory_order_relaxed); }

bool LogEnabled(LogLevel level) { return level <= log_level.load(std::memory_order_relaxed); }

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) return;
  const std::string line = FormatLogLine(std::chrono::system_clock::now(), level, event, fields);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::string FormatLogLine(std::chrono::system_clock::time_point time, LogLevel level,
                          std::string_view event, std::initializer_list<LogField> fields) {
  std::string line = absl::StrCat(TimeStamp(time), " ", LevelName(level), " event=", Quoted(event));
  for (const LogField& field : fields) {
    const bool plain =
        !field.value.empty() && std::all_of(field.value.begin(), field.value.end(), IsPlain);
    absl::StrAppend(&line, " ", std::string(field.key), "=",
                    plain ? field.value : Quoted(field.value));
  }
  return line + "\n";
}

}  // namespace attnserve
