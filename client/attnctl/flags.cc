#include "client/attnctl/flags.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/attnctl/tensor_input.h"
#include "lib/base/network_address.h"

namespace attnserve::ctl {

CLI::Validator Count(int64_t least, int64_t most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    int64_t value = 0;
    const bool number = absl::SimpleAtoi(text, &value);
    if (number && value >= least && value <= most) return "";
    const bool open = most == kManyCount && !(number && value > most);
    return absl::StrCat("\"", text, "\": expected ", least,
                        open ? " or more" : absl::StrCat(" to ", most));
  };
  return CLI::Validator(check, "");
}

CLI::Validator SomeText() {
  const auto check = [](const std::string& text) {
    return std::string(text.empty() ? "is empty; give a value, or leave the option out" : "");
  };
  return CLI::Validator(check, "");
}

CLI::Validator StageNames() {
  const auto check = [](const std::string& text) {
    return std::string(ParseStages(text).status().message());
  };
  return CLI::Validator(check, "");
}

std::string CheckServerAddress(const std::string& address) {
  if (IsUnixAddress(address) || IsHostAndPort(address, /*least_port=*/1)) return "";
  return absl::StrCat("\"", address, "\": expected host:port or unix:/path");
}

}  // namespace attnserve::ctl
