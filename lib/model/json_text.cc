#include "lib/model/json_text.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace attnserve {
namespace {

using nlohmann::json;

constexpr size_t kMaxQuotedBytes = 120;

// Builds the document from the parser's events; a false return stops the parser.
class Builder final : public nlohmann::json_sax<json> {
 public:
  json& root() { return root_; }
  const std::string& error() const { return error_; }

  bool null() override { return Add(json()); }
  bool boolean(bool value) override { return Add(json(value)); }
  bool number_integer(number_integer_t value) override { return Add(json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Add(json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return Add(json(value)); }
  bool string(string_t& value) override { return Add(json(std::move(value))); }
  bool binary(binary_t&) override { return Fail("binary values are not JSON"); }

  bool start_object(size_t) override { return Open(json::object()); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& key) override {
    if (open_.back()->contains(key)) {
      return Fail(absl::StrCat("the key ", Quoted(key), " occurs twice in one object"));
    }
    key_ = std::move(key);
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string text = error.what();  // "[json.exception.parse_error.101] parse error at ..."
    text.erase(0, text.find("] ") == std::string::npos ? 0 : text.find("] ") + 2);
    return Fail(absl::StrCat("at byte ", position, ": ", absl::CHexEscape(text)));
  }

 private:
  bool Fail(std::string text) {
    error_ = std::move(text);
    return false;
  }

  json* Place(json value) {
    json* slot = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(json());
      slot = &open_.back()->back();
    } else if (!open_.empty()) {
      slot = &(*open_.back())[key_];
    }
    *slot = std::move(value);
    return slot;
  }

  bool Add(json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(json container) {
    if (open_.size() == kMaxJsonDepth) {
      return Fail(absl::StrCat("is nested deeper than ", kMaxJsonDepth, " levels"));
    }
    open_.push_back(Place(std::move(container)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  json root_;
  // Containers that are not closed yet. Each is the last element of the one before, so that no
  // growth of a container moves an open one.
  std::vector<json*> open_;
  std::string key_;
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseJsonObject(std::string_view text) {
  Builder builder;
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(absl::StrCat("is not valid JSON: ", builder.error()));
  }
  if (!builder.root().is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("is a JSON ", builder.root().type_name(), ", expected an object {...}"));
  }
  return std::move(builder.root());
}

std::string Quoted(std::string_view text) {
  const bool cut = text.size() > kMaxQuotedBytes;
  const std::string_view part = text.substr(0, kMaxQuotedBytes);
  return absl::StrCat("\"", absl::Utf8SafeCEscape(absl::string_view(part.data(), part.size())),
                      cut ? "...\"" : "\"");
}

}  // namespace attnserve
