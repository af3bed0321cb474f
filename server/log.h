// One line an event on stderr: 2026-01-02T03:04:05.678Z INFO event="model_loaded" name=demo
// layers=6
#ifndef ATTNSERVE_SERVER_LOG_H_
#define ATTNSERVE_SERVER_LOG_H_

#include <chrono>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnserve {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

// A key and its value, written as key=value.
struct LogField {
  LogField(std::string_view field_key, const absl::AlphaNum& field_value)
      : key(field_key), value(absl::StrCat(field_value)) {}

  std::string_view key;
  std::string value;
};

// Lines above `level` are left out from now on; kInfo at first. Thread-safe.
void SetLogLevel(LogLevel level);

// Whether lines of `level` are written. Thread-safe.
bool LogEnabled(LogLevel level);

// Writes a line in one piece. Thread-safe. `event` is lower_snake_case.
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields);

// The line, newline included. Values with anything but [A-Za-z0-9._:/+@%-] stand in quotes, with
// quotes, backslashes and control characters escaped.
std::string FormatLogLine(std::chrono::system_clock::time_point time, LogLevel level,
                          std::string_view event, std::initializer_list<LogField> fields);

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_LOG_H_
