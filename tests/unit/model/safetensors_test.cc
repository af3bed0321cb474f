#include "lib/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lib/model/read_only_file.h"
#include "nlohmann/json.hpp"
#include "tests/unit/model/temp_folder.h"
#include "tests/unit/model/test_checkpoint.h"

namespace attnserve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

#if defined(__has_feature)
#define ATTNSERVE_HAS_FEATURE(name) __has_feature(name)
#else
#define ATTNSERVE_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    ATTNSERVE_HAS_FEATURE(address_sanitizer) || ATTNSERVE_HAS_FEATURE(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

std::string Bytes(const std::string& path) { return ReadTextFile(path, 1 << 20).value(); }

std::string Raw(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + data;
}

std::string ErrorOf(const std::string& path,
                    absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto file = SafetensorsFile::Open(path);
  EXPECT_FALSE(file.ok()) << path;
  EXPECT_EQ(file.status().code(), code) << file.status();
  return std::string(file.status().message());
}

// One tensor of each type that can be loaded.
struct Samples {
  std::vector<float> f32 = {1.5f, -2.0f, 3.25f, 0.0f, 1e-30f, -0.0f};
  std::vector<uint16_t> f16 = {0x3c00, 0xfbff, 0x0001};
  std::vector<uint16_t> bf16 = {0x3f80};
  std::vector<int64_t> i64 = {-1, int64_t{1} << 40};
  std::vector<uint8_t> flags = {1, 0, 1};

  std::vector<NamedTensor> Named() const {
    return {
        {"flags", {DType::kBool, {3}, flags.data()}},  {"half", {DType::kF16, {3, 1}, f16.data()}},
        {"brain", {DType::kBF16, {}, bf16.data()}},    {"empty", {DType::kF32, {4, 0}, f32.data()}},
        {"single", {DType::kF32, {2, 3}, f32.data()}}, {"whole", {DType::kI64, {2}, i64.data()}}};
  }
};

TEST(Safetensors, WrittenTensorsAreReadBack) {
  const TempFolder folder;
  const Samples samples;
  const std::vector<NamedTensor> written = samples.Named();
  const std::string path = folder.File("x.safetensors");
  ASSERT_EQ(WriteSafetensors(path, written, {{"k", "v\n\"w\""}}), absl::OkStatus());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->metadata().at("k"), "v\n\"w\"");
  EXPECT_THAT((*file)->names(), ElementsAre("brain", "empty", "flags", "half", "single", "whole"));
  for (const NamedTensor& tensor : written) {
    const auto loaded = (*file)->Load(tensor.name);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->view.dtype, tensor.tensor.dtype);
    EXPECT_EQ(loaded->view.shape, tensor.tensor.shape);
    ASSERT_TRUE(loaded->view.present());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(loaded->view.data) % kKernelAlignment, 0u);
    EXPECT_EQ(std::memcmp(loaded->view.data, tensor.tensor.data, tensor.tensor.bytes()), 0);
  }
}

TEST(Safetensors, WriterAlignsDataToElements) {
  const TempFolder folder;
  const Samples samples;
  const std::string path = folder.File("x.safetensors");
  ASSERT_EQ(WriteSafetensors(path, samples.Named(), {}), absl::OkStatus());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  const std::string bytes = Bytes(path);
  EXPECT_EQ(static_cast<uint8_t>(bytes[0]) % 8, 0);
  for (const std::string& name : (*file)->names()) {
    const SafetensorsEntry& entry = *(*file)->Find(name);
    EXPECT_EQ(entry.begin % SafetensorsElementSize(entry.dtype), 0u) << name;
  }
}

TEST(Safetensors, WriterRefusesWhatItCannotWrite) {
  const TempFolder folder;
  const float value = 1.0f;
  const TensorView view{DType::kF32, {1}, &value};
  const std::string path = folder.File("x.safetensors");
  EXPECT_FALSE(WriteSafetensors(path, {{"a", view}, {"a", view}}, {}).ok());
  EXPECT_FALSE(WriteSafetensors(path, {{"__metadata__", view}}, {}).ok());
  EXPECT_FALSE(WriteSafetensors(path, {{"\xff", view}}, {}).ok());
  EXPECT_FALSE(WriteSafetensors(path, {{"a", view}}, {{"k", "\xc3"}}).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(WriteSafetensors(folder.File("no/x.safetensors"), {{"a", view}}, {}).ok());
}

TEST(Safetensors, FailedWriteLeavesDevicesAlone) {
  if (!std::filesystem::is_character_file("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  const float value = 1.0f;
  EXPECT_FALSE(WriteSafetensors("/dev/full", {{"a", {DType::kF32, {1}, &value}}}, {}).ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST(Safetensors, EveryTruncationOfAFileIsRefused) {
  const TempFolder folder;
  const Samples samples;
  ASSERT_EQ(WriteSafetensors(folder.File("x"), samples.Named(), {}), absl::OkStatus());
  const std::string bytes = Bytes(folder.File("x"));
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string path = folder.Write("cut.safetensors", bytes.substr(0, size));
    EXPECT_THAT(ErrorOf(path), HasSubstr("cut.safetensors: ")) << size;
  }
  EXPECT_THAT(ErrorOf(folder.Write("long.safetensors", bytes + '\0')), HasSubstr("last tensor"));
}

TEST(Safetensors, EveryFlippedBitOfTheLengthIsRefused) {
  const TempFolder folder;
  const Samples samples;
  ASSERT_EQ(WriteSafetensors(folder.File("x"), samples.Named(), {}), absl::OkStatus());
  for (int bit = 0; bit < 64; ++bit) {
    std::string bytes = Bytes(folder.File("x"));
    bytes[static_cast<size_t>(bit / 8)] ^= static_cast<char>(1 << bit % 8);
    EXPECT_THAT(ErrorOf(folder.Write("flipped.safetensors", bytes)),
                HasSubstr("flipped.safetensors: "))
        << bit;
  }
}

TEST(Safetensors, HeaderErrorNamesFileAndTensor) {
  const TempFolder folder;
  const std::string path = folder.Write(
      "x.safetensors", Raw(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "abcd"));
  EXPECT_THAT(ErrorOf(path), HasSubstr(path + ": tensor \"w\": data_offsets [0, 4] hold 4 bytes"));
}

TEST(Safetensors, DTypesThatCannotBeLoadedAreListedAndNamed) {
  const TempFolder folder;
  for (const char* dtype : {"F64", "I32", "U8", "I8", "F8_E4M3", "C64", "U16"}) {
    const size_t size = SafetensorsElementSize(dtype);
    const nlohmann::json header = {
        {"w", {{"dtype", dtype}, {"shape", {1}}, {"data_offsets", {0, size}}}}};
    const auto file = SafetensorsFile::Open(
        folder.Write("x.safetensors", Raw(header.dump(), std::string(size, '\0'))));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->Find("w")->dtype, dtype);
    const auto loaded = (*file)->Load("w");
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(loaded.status().message()),
                HasSubstr(std::string("tensor \"w\" has dtype ") + dtype));
  }
}

TEST(Safetensors, RankAboveEightIsListedButNotLoaded) {
  const TempFolder folder;
  const nlohmann::json header = {
      {"w", {{"dtype", "F32"}, {"shape", std::vector<int>(9, 1)}, {"data_offsets", {0, 4}}}}};
  const auto file =
      SafetensorsFile::Open(folder.Write("x.safetensors", Raw(header.dump(), "abcd")));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(std::string((*file)->Load("w").status().message()), HasSubstr("has 9 dimensions"));
}

TEST(Safetensors, BoolThatIsNeitherZeroNorOneIsRefused) {
  const TempFolder folder;
  const auto file = SafetensorsFile::Open(folder.Write(
      "x.safetensors",
      Raw(R"({"w":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", std::string("\1\0\2", 3))));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Load("w").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Safetensors, UnknownNameIsNotFound) {
  const TempFolder folder;
  const auto file = SafetensorsFile::Open(folder.Write("x.safetensors", Raw("{}", "")));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->Find("w"), nullptr);
  EXPECT_EQ((*file)->Load("w").status().code(), absl::StatusCode::kNotFound);
}

TEST(Safetensors, FileThatShrinksAfterOpenIsDataLoss) {
  const TempFolder folder;
  const std::string path = folder.Write(
      "x.safetensors", Raw(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd"));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_EQ((*file)->Load("w").status().code(), absl::StatusCode::kDataLoss);
}

TEST(Safetensors, TensorBeyondMemoryIsResourceExhausted) {
  if (kSanitized) GTEST_SKIP() << "sanitizers abort on impossible allocations";
  constexpr uint64_t kBytes = uint64_t{1} << 43;
  void* const probe = std::aligned_alloc(kKernelAlignment, kBytes);
  std::free(probe);
  if (probe != nullptr) GTEST_SKIP() << "this system promises any amount of memory";
  const TempFolder folder;
  const nlohmann::json header = {
      {"w", {{"dtype", "F32"}, {"shape", {kBytes / 4}}, {"data_offsets", {0, kBytes}}}}};
  const std::string path = folder.Write("x.safetensors", Raw(header.dump(), ""));
  std::error_code error;  // the file is one hole
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + kBytes, error);
  if (error) GTEST_SKIP() << "no file of 2^43 bytes here: " << error.message();
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Load("w").status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Safetensors, WhatIsNoRegularFileIsRefused) {
  const TempFolder folder;
  EXPECT_THAT(ErrorOf(folder.path()), HasSubstr("is not a regular file"));
  const std::string pipe = folder.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf(pipe), HasSubstr("is not a regular file"));
  ErrorOf(folder.File("absent"), absl::StatusCode::kNotFound);
  std::filesystem::create_symlink("absent", folder.File("dangling"));
  ErrorOf(folder.File("dangling"), absl::StatusCode::kNotFound);
}

TEST(Safetensors, SymbolicLinkIsFollowed) {
  const TempFolder folder;
  folder.Write("blob", Raw("{}", ""));
  std::filesystem::create_symlink("blob", folder.File("model.safetensors"));
  EXPECT_TRUE(SafetensorsFile::Open(folder.File("model.safetensors")).ok());
}

TEST(Safetensors, ThreadsMayLoadAtOnce) {
  const TempFolder folder;
  const TestCheckpoint checkpoint = LlamaCheckpoint("qwen3", {});
  checkpoint.Write(folder.File("x.safetensors"));
  const auto file = SafetensorsFile::Open(folder.File("x.safetensors"));
  ASSERT_TRUE(file.ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const std::string& name : checkpoint.Names()) {
        const auto loaded = (*file)->Load(name);
        ASSERT_TRUE(loaded.ok());
        const std::vector<float> expected = checkpoint.Values(name);
        EXPECT_EQ(std::memcmp(loaded->view.data, expected.data(), loaded->view.bytes()), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A sharded checkpoint whose index a test may spoil.
class SafetensorsIndex : public testing::Test {
 protected:
  SafetensorsIndex() {
    checkpoint_.WriteSharded(folder_.path(), 3);
    index_ = nlohmann::json::parse(Bytes(path_));
  }

  std::string ErrorOfIndex(const std::string& text,
                           absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    folder_.Write("model.safetensors.index.json", text);
    const std::string error = ErrorOf(path_, code);
    EXPECT_THAT(error, HasSubstr(folder_.path()));
    return error;
  }

  const TempFolder folder_;
  const TestCheckpoint checkpoint_ = LlamaCheckpoint("llama", {});
  const std::string path_ = folder_.File("model.safetensors.index.json");
  const std::string first_ = "model.embed_tokens.weight";
  nlohmann::json index_;
};

TEST_F(SafetensorsIndex, ShardsReadLikeOneFile) {
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->names(), checkpoint_.Names());
  EXPECT_THAT((*file)->metadata(), IsEmpty());
  for (const std::string& name : checkpoint_.Names()) {
    const auto loaded = (*file)->Load(name);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const std::vector<float> expected = checkpoint_.Values(name);
    EXPECT_EQ(std::memcmp(loaded->view.data, expected.data(), loaded->view.bytes()), 0) << name;
  }
}

TEST_F(SafetensorsIndex, TensorsTheIndexDoesNotListAreNotSeen) {
  index_["weight_map"].erase(first_);
  folder_.Write("model.safetensors.index.json", index_.dump());
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Find(first_), nullptr);
}

TEST_F(SafetensorsIndex, FileOutsideTheFolderIsRefused) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..",
                           ".", "", "./model-00001-of-00003.safetensors"}) {
    index_["weight_map"][first_] = name;
    EXPECT_THAT(ErrorOfIndex(index_.dump()), HasSubstr("own folder")) << name;
  }
  index_["weight_map"][first_] = std::string("model-00001-of-00003.safetensors\0x", 34);
  EXPECT_THAT(ErrorOfIndex(index_.dump()), HasSubstr("own folder"));
}

TEST_F(SafetensorsIndex, MissingShardIsNamed) {
  std::filesystem::remove(folder_.File("model-00002-of-00003.safetensors"));
  EXPECT_THAT(ErrorOf(path_, absl::StatusCode::kNotFound),
              HasSubstr("model-00002-of-00003.safetensors"));
}

TEST_F(SafetensorsIndex, TensorThatIsNotInItsShardIsNamed) {
  index_["weight_map"]["ghost"] = "model-00001-of-00003.safetensors";
  EXPECT_THAT(ErrorOfIndex(index_.dump()), HasSubstr("\"ghost\""));
}

TEST_F(SafetensorsIndex, SpoiledShardIsNamed) {
  const std::string shard = folder_.File("model-00003-of-00003.safetensors");
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  EXPECT_THAT(ErrorOf(path_), HasSubstr("model-00003-of-00003.safetensors"));
}

TEST_F(SafetensorsIndex, MalformedIndexIsRefused) {
  ErrorOfIndex("");
  ErrorOfIndex("[]");
  ErrorOfIndex("{}");
  ErrorOfIndex(R"({"weight_map": []})");
  ErrorOfIndex(R"({"weight_map": {"a": 1}})");
  EXPECT_THAT(ErrorOfIndex(R"({"weight_map": {"a": "x", "a": "x"}})"), HasSubstr("occurs twice"));
}

}  // namespace
}  // namespace attnserve
