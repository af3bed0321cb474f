#include "client/attnctl/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace attnserve::ctl {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kFirstText = Tokenizer::kFirstByte + 256;

std::string WriteVocabulary(const std::string& content) {
  const std::string path = ::testing::TempDir() + "/attnctl_vocab.json";
  std::ofstream(path) << content;
  return path;
}

// The specials, the bytes and then `pieces`.
Tokenizer MakeTokenizer(const std::vector<std::pair<std::string, float>>& pieces) {
  json list = json::array({{"<unk>", 0.0}, {"\n<s>\n", 0.0}, {"\n</s>\n", 0.0}});
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    list.push_back({name, 0.0});
  }
  for (const auto& [text, score] : pieces) list.push_back({text, score});
  const auto tokenizer = Tokenizer::Load(WriteVocabulary(json{{"pieces", list}}.dump()));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

std::string Decode(const Tokenizer& tokenizer, const std::vector<int>& tokens) {
  std::string text;
  int previous = Tokenizer::kBos;
  for (const int token : tokens) {
    text += tokenizer.Decode(previous, token);
    previous = token;
  }
  return text;
}

TEST(Tokenizer, BestScoreMergesFirst) {
  const Tokenizer tokenizer = MakeTokenizer(
      {{" ", -9}, {"a", -9}, {"b", -9}, {"c", -9}, {"ab", -2}, {"bc", -1}, {"abc", -3}});
  EXPECT_THAT(tokenizer.Encode("abc"), ElementsAre(kFirstText, kFirstText + 6));
  EXPECT_THAT(tokenizer.Encode("abbc"), ElementsAre(kFirstText, kFirstText + 4, kFirstText + 5));
}

TEST(Tokenizer, LeftmostOfEqualScoresMergesFirst) {
  const Tokenizer tokenizer = MakeTokenizer({{" ", -9}, {"a", -9}, {"aa", -1}});
  EXPECT_THAT(tokenizer.Encode("aaa"), ElementsAre(kFirstText, kFirstText + 2, kFirstText + 1));
}

TEST(Tokenizer, UnknownCharactersBecomeTheirBytes) {
  const Tokenizer tokenizer = MakeTokenizer({{" ", -1}, {"\xC3\xA9", -2}});
  EXPECT_THAT(tokenizer.Encode("\xC3\xA9\xE2\x82\xAC"),
              ElementsAre(kFirstText, kFirstText + 1, Tokenizer::kFirstByte + 0xE2,
                          Tokenizer::kFirstByte + 0x82, Tokenizer::kFirstByte + 0xAC));
}

TEST(Tokenizer, InvalidUtf8ComesBackByteForByte) {
  const Tokenizer tokenizer = MakeTokenizer({{" ", -1}, {"a", -2}});
  const std::string text =
      "\x80\xFF"
      "a\xC3";
  EXPECT_EQ(Decode(tokenizer, tokenizer.Encode(text)), text);
}

TEST(Tokenizer, SpaceAfterStartIsDroppedOnce) {
  const Tokenizer tokenizer = MakeTokenizer({{" ", -1}, {"a", -2}, {" a", -3}});
  EXPECT_EQ(tokenizer.Decode(Tokenizer::kBos, kFirstText + 2), "a");
  EXPECT_EQ(tokenizer.Decode(kFirstText + 1, kFirstText + 2), " a");
  EXPECT_THAT(tokenizer.Encode(""), IsEmpty());
}

TEST(Tokenizer, NamesOfSpecialsAndBytesAreText) {
  const Tokenizer tokenizer = MakeTokenizer({{" ", -9}, {"<", -1}, {"s", -1}, {">", -1}});
  const std::string text = "<0x41><s><unk>";
  EXPECT_EQ(Decode(tokenizer, tokenizer.Encode(text)), text);
  for (const int token : tokenizer.Encode("\n<s>\n")) EXPECT_NE(token, Tokenizer::kBos);
}

TEST(Tokenizer, WrongFilesAreErrors) {
  EXPECT_TRUE(absl::IsNotFound(Tokenizer::Load("/nonexistent/vocab.json").status()));
  for (const char* content :
       {"", "[]", "{\"pieces\": 3}", "{\"pieces\": []}", "{\"pieces\": [[1, 2]]}",
        "{\"pieces\": [[\"a\"]]}", "{\"pieces\": [[\"a\", \"b\"]]}"}) {
    const absl::Status status = Tokenizer::Load(WriteVocabulary(content)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << content;
    EXPECT_THAT(std::string(status.message()), HasSubstr("vocab.json"));
  }
}

class TrainedTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(TrainedTokenizer, PublishedTextIsItsTokens) {
  const std::string folder = GetParam();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not here";
  const auto tokenizer = Tokenizer::Load(folder + "/vocab.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::ifstream file(folder + "/expected_greedy.json");
  const json expected = json::parse(file);
  std::vector<int> tokens = expected["token_ids"];
  ASSERT_EQ(tokens.front(), Tokenizer::kBos);
  tokens.erase(tokens.begin());
  const std::string text = expected["text"];
  EXPECT_EQ(Decode(*tokenizer, tokens), text);
  EXPECT_THAT(tokenizer->Encode(text.substr(0, 16)),
              ElementsAreArray(tokens.begin(),
                               tokens.begin() + static_cast<std::ptrdiff_t>(
                                                    tokenizer->Encode(text.substr(0, 16)).size())));
  EXPECT_EQ(Decode(*tokenizer, tokenizer->Encode(text)), text);
}

INSTANTIATE_TEST_SUITE_P(Models, TrainedTokenizer,
                         ::testing::Values(ATTNSERVE_SHARED_DIR "/models/stories260k",
                                           ATTNSERVE_SOURCE_DIR "/deploy/demo_model"),
                         [](const auto& info) { return info.index == 0 ? "Stories" : "Demo"; });

}  // namespace
}  // namespace attnserve::ctl
