// Reads a config.json key by key and knows afterwards which keys nobody asked for.
#ifndef ATTNSERVE_LIB_MODEL_HUGGING_FACE_CONFIG_H_
#define ATTNSERVE_LIB_MODEL_HUGGING_FACE_CONFIG_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace attnserve {

// A JSON object under reading. The first problem is kept in status() and later ones are dropped, so
// that readers need not check after each key; a value that is wrong reads as the fallback, or as 1,
// so that nobody divides by it. A key that is null reads as missing. Not thread-safe.
class ConfigReader {
 public:
  // `object`, a JSON object, must outlive this. `prefix` goes before keys in messages, for example
  // "rope_scaling.".
  ConfigReader(const nlohmann::json& object, std::string prefix);

  const absl::Status& status() const { return status_; }
  // InvalidArgument with `text`, if nothing failed before.
  void Fail(std::string_view text);

  // Whether the key is there, null or not.
  bool Contains(const char* key) const { return object_.contains(key); }
  // Whether the key is there and not null.
  bool Has(const char* key) const;

  // A whole number from 1 to `limit`, required.
  int64_t Size(const char* key, int64_t limit);
  int64_t SizeOr(const char* key, int64_t limit, int64_t fallback);
  // A whole number from 0 to 2^31 - 1.
  int64_t CountOr(const char* key, int64_t fallback);
  double Number(const char* key);
  double NumberOr(const char* key, double fallback);
  bool FlagOr(const char* key, bool fallback);
  std::string TextOr(const char* key, std::string_view fallback);
  // An array of strings; empty if missing.
  std::vector<std::string> Texts(const char* key);
  // Null if missing.
  const nlohmann::json* Object(const char* key);

  // Declares that `key` may have any value.
  void Ignore(const char* key) { read_.insert(key); }

  // Fails if a key was neither read nor ignored and is on: not null, false, or empty. With
  // `attention_only`, keys whose names have nothing to do with attention do not count.
  void RefuseUnread(bool attention_only);

 private:
  const nlohmann::json* Value(const char* key);
  void FailKey(const char* key, const nlohmann::json& value, std::string_view expected);

  const nlohmann::json& object_;
  const std::string prefix_;
  std::set<std::string, std::less<>> read_;
  absl::Status status_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_HUGGING_FACE_CONFIG_H_
