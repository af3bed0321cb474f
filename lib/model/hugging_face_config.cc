#include "lib/model/hugging_face_config.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/model/json_text.h"

namespace attnserve {
namespace {

using nlohmann::json;

// Parts of the names under which configurations of transformers describe attention.
constexpr std::string_view kAttentionWords[] = {
    "attention", "attn",  "rope",     "rotary",        "window", "qk",    "softcap",  "alibi",
    "sink",      "head",  "quant",    "causal",        "kv",     "query", "position", "layer_types",
    "decoder",   "cross", "clip_qkv", "bidirectional",
};

bool SpeaksOfAttention(std::string_view key) {
  return std::any_of(std::begin(kAttentionWords), std::end(kAttentionWords),
                     [key](std::string_view word) { return key.find(word) != key.npos; });
}

bool IsOff(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || (value.is_structured() && value.empty());
}

// A value as JSON, on one line; cut if it is long.
std::string Shown(const json& value) {
  constexpr size_t kMaxShownBytes = 100;
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= kMaxShownBytes ? text : absl::StrCat(text.substr(0, kMaxShownBytes), "...");
}

}  // namespace

ConfigReader::ConfigReader(const json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {}

void ConfigReader::Fail(std::string_view text) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(std::string(text));
}

void ConfigReader::FailKey(const char* key, const json& value, std::string_view expected) {
  Fail(absl::StrCat(prefix_, key, " is ", Shown(value), "; expected ", std::string(expected)));
}

bool ConfigReader::Has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

const json* ConfigReader::Value(const char* key) {
  read_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

int64_t ConfigReader::SizeOr(const char* key, int64_t limit, int64_t fallback) {
  const json* value = Value(key);
  if (value == nullptr) return fallback;
  if (value->is_number_unsigned()) {
    const uint64_t number = value->get<uint64_t>();
    if (number >= 1 && number <= static_cast<uint64_t>(limit)) return static_cast<int64_t>(number);
  }
  FailKey(key, *value, absl::StrCat("a whole number from 1 to ", limit));
  return 1;
}

int64_t ConfigReader::Size(const char* key, int64_t limit) {
  if (!Has(key)) Fail(absl::StrCat(prefix_, key, " is missing"));
  return SizeOr(key, limit, 1);
}

int64_t ConfigReader::CountOr(const char* key, int64_t fallback) {
  const json* value = Value(key);
  if (value == nullptr) return fallback;
  constexpr uint64_t kMax = std::numeric_limits<int32_t>::max();
  if (value->is_number_unsigned() && value->get<uint64_t>() <= kMax) return value->get<int64_t>();
  FailKey(key, *value, absl::StrCat("a whole number from 0 to ", kMax));
  return fallback;
}

double ConfigReader::NumberOr(const char* key, double fallback) {
  const json* value = Value(key);
  if (value == nullptr) return fallback;
  if (value->is_number()) return value->get<double>();
  FailKey(key, *value, "a number");
  return fallback;
}

double ConfigReader::Number(const char* key) {
  if (!Has(key)) Fail(absl::StrCat(prefix_, key, " is missing"));
  return NumberOr(key, 1.0);
}

bool ConfigReader::FlagOr(const char* key, bool fallback) {
  const json* value = Value(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  FailKey(key, *value, "true or false");
  return fallback;
}

std::string ConfigReader::TextOr(const char* key, std::string_view fallback) {
  const json* value = Value(key);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  FailKey(key, *value, "a string");
  return std::string(fallback);
}

std::vector<std::string> ConfigReader::Texts(const char* key) {
  std::vector<std::string> texts;
  const json* value = Value(key);
  if (value == nullptr) return texts;
  if (!value->is_array()) {
    FailKey(key, *value, "an array of strings");
    return texts;
  }
  for (const json& element : *value) {
    if (!element.is_string()) {
      FailKey(key, *value, "an array of strings");
      return {};
    }
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

const json* ConfigReader::Object(const char* key) {
  const json* value = Value(key);
  if (value == nullptr || value->is_object()) return value;
  FailKey(key, *value, "an object {...}");
  return nullptr;
}

void ConfigReader::RefuseUnread(bool attention_only) {
  for (const auto& [key, value] : object_.items()) {
    if (read_.count(key) != 0 || IsOff(value)) continue;
    if (attention_only && !SpeaksOfAttention(key)) continue;
    Fail(absl::StrCat(prefix_, Quoted(key), " is ", Shown(value),
                      "; it is not supported here, and leaving it out may change attention"));
  }
}

}  // namespace attnserve
