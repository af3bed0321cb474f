#include "lib/model/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace attnserve {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// 24 + 0 + 12 + 4 bytes, not in the order of their names.
json GoodHeader() {
  return {{"__metadata__", {{"format", "pt"}}},
          {"b", {{"dtype", "F32"}, {"shape", {2, 3}}, {"data_offsets", {0, 24}}}},
          {"none", {{"dtype", "F32"}, {"shape", {0, 3}}, {"data_offsets", {24, 24}}}},
          {"a", {{"dtype", "BF16"}, {"shape", {1, 6}}, {"data_offsets", {24, 36}}}},
          {"scalar", {{"dtype", "I32"}, {"shape", json::array()}, {"data_offsets", {36, 40}}}}};
}
constexpr uint64_t kGoodBytes = 40;

std::string ErrorOf(const std::string& text, uint64_t data_bytes = kGoodBytes) {
  const auto header = ParseSafetensorsHeader(text, data_bytes);
  EXPECT_FALSE(header.ok()) << text;
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(header.status().message());
}

// The error after tensor "a"'s `field` became `value`.
std::string ErrorWith(const char* field, const json& value) {
  json header = GoodHeader();
  header["a"][field] = value;
  const std::string error = ErrorOf(header.dump());
  EXPECT_THAT(error, HasSubstr("tensor \"a\"")) << field << " " << value;
  return error;
}

TEST(SafetensorsHeader, GoodHeaderIsUnderstood) {
  const auto header = ParseSafetensorsHeader(GoodHeader().dump(), kGoodBytes);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 4u);
  EXPECT_EQ(header->metadata.at("format"), "pt");
  const SafetensorsEntry& a = header->tensors.at("a");
  EXPECT_EQ(a.dtype, "BF16");
  EXPECT_THAT(a.shape, ElementsAre(1, 6));
  EXPECT_EQ(a.begin, 24u);
  EXPECT_EQ(a.end, 36u);
  EXPECT_THAT(header->tensors.at("scalar").shape, IsEmpty());
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 0).ok());
  EXPECT_TRUE(ParseSafetensorsHeader(GoodHeader().dump() + "    ", kGoodBytes).ok());
}

TEST(SafetensorsHeader, LengthAboveLimitOrFileIsRefused) {
  const auto length = [](uint64_t value, uint64_t file_bytes) {
    uint8_t prefix[8];
    for (int i = 0; i < 8; ++i) prefix[i] = static_cast<uint8_t>(value >> (8 * i));
    return SafetensorsHeaderBytes(prefix, file_bytes);
  };
  EXPECT_EQ(length(0, 8).value(), 0u);
  EXPECT_EQ(length(92, 100).value(), 92u);
  EXPECT_EQ(length(0x01020304, 1u << 30).value(), 0x01020304u);
  EXPECT_EQ(length(100'000'000, uint64_t{1} << 40).value(), 100'000'000u);
  for (const auto& [value, file_bytes] : {std::pair<uint64_t, uint64_t>{93, 100},
                                          {1, 8},
                                          {100'000'001, uint64_t{1} << 40},
                                          {uint64_t{1} << 63, 100},
                                          {~uint64_t{0}, ~uint64_t{0}}}) {
    EXPECT_EQ(length(value, file_bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(std::string(length(93, 100).status().message()), HasSubstr("cut short"));
}

TEST(SafetensorsHeader, TextThatIsNoObjectIsRefused) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("does not start with {"));
  EXPECT_THAT(ErrorOf(" {}", 0), HasSubstr("does not start with {"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("does not start with {"));
  EXPECT_THAT(ErrorOf(std::string(100, '\0')), HasSubstr("does not start with {"));
  EXPECT_THAT(ErrorOf("{\"a\""), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf("{} trailing", 0), HasSubstr("not valid JSON"));
}

TEST(SafetensorsHeader, DuplicateKeyIsRefused) {
  std::string text = GoodHeader().dump();
  text.pop_back();
  EXPECT_THAT(ErrorOf(text + R"(,"a":{"dtype":"BF16","shape":[1,6],"data_offsets":[24,36]}})"),
              HasSubstr("\"a\" occurs twice"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
              HasSubstr("\"dtype\" occurs twice"));
}

TEST(SafetensorsHeader, EveryTruncationOfTheTextIsRefused) {
  const std::string text = GoodHeader().dump();
  for (size_t size = 0; size < text.size(); ++size) ErrorOf(text.substr(0, size));
}

TEST(SafetensorsHeader, WrongDTypeIsRefused) {
  EXPECT_THAT(ErrorWith("dtype", "F33"), HasSubstr("dtype \"F33\" is not known"));
  EXPECT_THAT(ErrorWith("dtype", ""), HasSubstr("not known"));
  EXPECT_THAT(ErrorWith("dtype", "bf16"), HasSubstr("not known"));
  EXPECT_THAT(ErrorWith("dtype", 3), HasSubstr("dtype is a number"));
  EXPECT_THAT(ErrorWith("dtype", nullptr), HasSubstr("dtype is a null"));
  EXPECT_THAT(ErrorWith("dtype", "F32"), HasSubstr("takes 24"));
}

TEST(SafetensorsHeader, EveryDTypeOfTheFormatHasItsSize) {
  const std::vector<std::pair<const char*, size_t>> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8},     {"C64", 8}};
  for (const auto& [dtype, size] : sizes) {
    EXPECT_EQ(SafetensorsElementSize(dtype), size) << dtype;
    const json header = {
        {"x", {{"dtype", dtype}, {"shape", {3}}, {"data_offsets", {0, 3 * size}}}}};
    EXPECT_TRUE(ParseSafetensorsHeader(header.dump(), 3 * size).ok()) << dtype;
  }
  EXPECT_EQ(SafetensorsElementSize("F4"), 0u);
}

TEST(SafetensorsHeader, WrongShapeIsRefused) {
  EXPECT_THAT(ErrorWith("shape", {1, -6}), HasSubstr("shape holds"));
  EXPECT_THAT(ErrorWith("shape", {1, 6.0}), HasSubstr("shape holds"));
  EXPECT_THAT(ErrorWith("shape", {1, "6"}), HasSubstr("shape holds"));
  EXPECT_THAT(ErrorWith("shape", json::array({json::array({6})})), HasSubstr("shape holds"));
  EXPECT_THAT(ErrorWith("shape", {1, nullptr}), HasSubstr("shape holds"));
  EXPECT_THAT(ErrorWith("shape", {1, uint64_t{1} << 63}), HasSubstr("shape holds"));
  EXPECT_THAT(ErrorWith("shape", 6), HasSubstr("shape is a number"));
  EXPECT_THAT(ErrorWith("shape", json::object()), HasSubstr("shape is a object"));
  EXPECT_THAT(ErrorWith("shape", {1, 5}), HasSubstr("hold 12 bytes, BF16 [1, 5] takes 10"));
  EXPECT_THAT(ErrorWith("shape", {1, 7}), HasSubstr("takes 14"));
  EXPECT_THAT(ErrorWith("shape", json::array()), HasSubstr("takes 2"));
}

TEST(SafetensorsHeader, ShapeThatOverflowsIsRefused) {
  const int64_t huge = int64_t{1} << 32;
  EXPECT_THAT(ErrorWith("shape", {huge, huge}), HasSubstr("more than 2^62 bytes"));
  EXPECT_THAT(ErrorWith("shape", {huge, huge, huge, huge, huge}), HasSubstr("more than 2^62"));
  // A product that wraps to the right size, and a zero that would hide it.
  EXPECT_THAT(ErrorWith("shape", {int64_t{1} << 62, 8}), HasSubstr("more than 2^62"));
  EXPECT_THAT(ErrorWith("shape", {0, huge, huge}), HasSubstr("more than 2^62"));
}

TEST(SafetensorsHeader, WrongOffsetsAreRefused) {
  EXPECT_THAT(ErrorWith("data_offsets", {36, 24}), HasSubstr("end before they begin"));
  EXPECT_THAT(ErrorWith("data_offsets", {-1, 11}), HasSubstr("data_offsets holds"));
  EXPECT_THAT(ErrorWith("data_offsets", {24.0, 36}), HasSubstr("data_offsets holds"));
  EXPECT_THAT(ErrorWith("data_offsets", {"24", 36}), HasSubstr("data_offsets holds"));
  EXPECT_THAT(ErrorWith("data_offsets", {24}), HasSubstr("has 1 elements"));
  EXPECT_THAT(ErrorWith("data_offsets", {24, 36, 48}), HasSubstr("has 3 elements"));
  EXPECT_THAT(ErrorWith("data_offsets", json::array()), HasSubstr("has 0 elements"));
  EXPECT_THAT(ErrorWith("data_offsets", 24), HasSubstr("data_offsets is a number"));
  EXPECT_THAT(ErrorWith("data_offsets", {24, 35}), HasSubstr("hold 11 bytes"));
  EXPECT_THAT(ErrorWith("data_offsets", {24, 37}), HasSubstr("hold 13 bytes"));
  EXPECT_THAT(ErrorWith("data_offsets", {40, 52}), HasSubstr("the data, which has 40 bytes"));
  EXPECT_THAT(ErrorWith("data_offsets", {uint64_t{1} << 62, (uint64_t{1} << 62) + 12}),
              HasSubstr("the data, which has 40 bytes"));
}

TEST(SafetensorsHeader, OverlapGapAndRestAreRefused) {
  json overlap = GoodHeader();
  overlap["a"]["data_offsets"] = {20, 32};
  EXPECT_THAT(ErrorOf(overlap.dump()), HasSubstr("they overlap"));
  json twin = GoodHeader();
  twin["c"] = twin["a"];
  EXPECT_THAT(ErrorOf(twin.dump()), HasSubstr("they overlap"));
  json gap = GoodHeader();
  gap["scalar"]["data_offsets"] = {37, 41};
  EXPECT_THAT(ErrorOf(gap.dump(), 41), HasSubstr("they leave a gap"));
  json late = GoodHeader();
  late.erase("b");
  EXPECT_THAT(ErrorOf(late.dump()), HasSubstr("leave a gap"));
  EXPECT_THAT(ErrorOf(GoodHeader().dump(), kGoodBytes + 1), HasSubstr("which has 41 bytes"));
  EXPECT_THAT(ErrorOf(GoodHeader().dump(), kGoodBytes - 1), HasSubstr("cut short"));
  EXPECT_THAT(ErrorOf("{}", 1), HasSubstr("which has 1 bytes"));
}

TEST(SafetensorsHeader, MissingOrUnknownFieldIsRefused) {
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    json header = GoodHeader();
    header["a"].erase(field);
    EXPECT_THAT(ErrorOf(header.dump()), HasSubstr(std::string("\"a\": has no ") + field));
  }
  EXPECT_THAT(ErrorWith("strides", {1}), HasSubstr("unknown field \"strides\""));
  for (const json& value : {json(1), json("x"), json(nullptr), json::array()}) {
    json header = GoodHeader();
    header["a"] = value;
    EXPECT_THAT(ErrorOf(header.dump()), HasSubstr("expected an object"));
  }
}

TEST(SafetensorsHeader, MetadataThatIsNoMapOfStringsIsRefused) {
  json header = GoodHeader();
  header["__metadata__"] = {{"format", 1}};
  EXPECT_THAT(ErrorOf(header.dump()), HasSubstr("__metadata__ entry \"format\""));
  header["__metadata__"] = {"pt"};
  EXPECT_THAT(ErrorOf(header.dump()), HasSubstr("__metadata__ is a array"));
  header["__metadata__"] = nullptr;
  EXPECT_THAT(ErrorOf(header.dump()), HasSubstr("__metadata__ is a null"));
}

}  // namespace
}  // namespace attnserve
