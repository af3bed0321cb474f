#include "lib/model/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace attnserve {
namespace {

using testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const auto result = ParseJsonObject(text);
  EXPECT_FALSE(result.ok()) << text;
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

std::string Nested(size_t depth) {
  std::string text = R"({"a": )";
  text.append(depth - 1, '[').append(depth - 1, ']');
  return text + "}";
}

TEST(JsonText, EveryKindOfValueIsKept) {
  const auto result = ParseJsonObject(
      R"( {"n": null, "t": true, "i": -3, "u": 18446744073709551615, "f": 1.5e-3, "s": "a\u00e9\n",
           "a": [1, [2, {}], {"x": []}], "o": {"p": {"q": 7}, "r": 8}} )");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE((*result)["n"].is_null());
  EXPECT_EQ((*result)["t"], true);
  EXPECT_EQ((*result)["i"], -3);
  EXPECT_EQ((*result)["u"].get<uint64_t>(), 18446744073709551615u);
  EXPECT_EQ((*result)["f"], 1.5e-3);
  EXPECT_EQ((*result)["s"], "a\xc3\xa9\n");
  EXPECT_EQ((*result)["a"].dump(), R"([1,[2,{}],{"x":[]}])");
  EXPECT_EQ((*result)["o"]["p"]["q"], 7);
  EXPECT_EQ((*result)["o"]["r"], 8);
}

TEST(JsonText, DuplicateKeyIsRefusedAtAnyDepth) {
  EXPECT_THAT(ErrorOf(R"({"a": 1, "b": 2, "a": 1})"), HasSubstr("\"a\" occurs twice"));
  EXPECT_THAT(ErrorOf(R"({"x": [{"k": 1, "k": 2}]})"), HasSubstr("\"k\" occurs twice"));
  EXPECT_THAT(ErrorOf(R"({"a": 1, "\u0061": 2})"), HasSubstr("\"a\" occurs twice"));
  EXPECT_TRUE(ParseJsonObject(R"({"a": {"k": 1}, "b": {"k": 1}})").ok());
}

TEST(JsonText, MalformedTextIsRefusedWithItsPosition) {
  for (const char* text :
       {"", " ", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{'a':1}", "{a:1}", "{\"a\":01}",
        "{\"a\":NaN}", "{\"a\":Infinity}", "{\"a\":1e999}", "{\"a\":1}x", "{\"a\":1}{}",
        "{\"a\":\"\x01\"}", "{\"a\":\"\\ud800\"}", "{\"a\":1 /* c */}", "{\"a\":[1,2}"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("is not valid JSON: at byte ")) << text;
  }
}

TEST(JsonText, InvalidUtf8IsRefused) {
  for (const char* bytes : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf8\x88\x80\x80\x80", "\xc3"}) {
    ErrorOf(std::string("{\"") + bytes + "\": 1}");
    ErrorOf(std::string("{\"a\": \"") + bytes + "\"}");
  }
}

TEST(JsonText, OtherThanAnObjectIsRefused) {
  EXPECT_THAT(ErrorOf("[1]"), HasSubstr("array"));
  EXPECT_THAT(ErrorOf("3"), HasSubstr("number"));
  EXPECT_THAT(ErrorOf("null"), HasSubstr("null"));
}

TEST(JsonText, DepthIsLimited) {
  EXPECT_TRUE(ParseJsonObject(Nested(kMaxJsonDepth)).ok());
  EXPECT_THAT(ErrorOf(Nested(kMaxJsonDepth + 1)), HasSubstr("nested deeper than 64"));
  ErrorOf(std::string("{\"a\":") + std::string(1000000, '['));
}

TEST(Quoted, TextIsEscapedAndCut) {
  EXPECT_EQ(Quoted("plain"), "\"plain\"");
  EXPECT_EQ(Quoted("a\n\"b\""), "\"a\\n\\\"b\\\"\"");
  EXPECT_EQ(Quoted(std::string(200, 'x')), "\"" + std::string(120, 'x') + "...\"");
}

}  // namespace
}  // namespace attnserve
