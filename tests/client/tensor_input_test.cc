#include "client/attnctl/tensor_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "attnserve/client/tensor.h"
#include "lib/model/safetensors.h"

namespace attnserve::ctl {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TensorInput, NestedListsBecomeATensor) {
  const auto tensor = ReadTensor("--q", "[[1, 2.5, -3], [4, 5, 6e2]]", 4);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->dtype(), v1::DTYPE_F32);
  EXPECT_THAT(tensor->shape(), ElementsAre(1, 1, 2, 3));
  EXPECT_THAT(client::ToFloats(*tensor).value(), ElementsAre(1, 2.5f, -3, 4, 5, 600));
}

TEST(TensorInput, TrueAndFalseBecomeAMask) {
  const auto tensor = ReadTensor("--mask", "[[true, false], [true, true]]", 1);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->dtype(), v1::DTYPE_BOOL);
  EXPECT_THAT(tensor->shape(), ElementsAre(2, 2));
  EXPECT_THAT(client::ToFloats(*tensor).value(), ElementsAre(1, 0, 1, 1));
}

TEST(TensorInput, EmptyListsKeepTheirShape) {
  const auto tensor = ReadTensor("--q", "[[[], []]]", 4);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_THAT(tensor->shape(), ElementsAre(1, 1, 2, 0));
}

TEST(TensorInput, ErrorsNameTheFlag) {
  for (const char* text :
       {"", "[1, 2", "[[1], [2, 3]]", "[1, [2]]", "[[1], 2]", "[\"a\"]", "[null]", "[true, 1]",
        "{\"a\": 1}", "[[], [1]]", "nonexistent.json", "nonexistent.safetensors#q"}) {
    const auto tensor = ReadTensor("--q", text, 4);
    EXPECT_FALSE(tensor.ok()) << text;
    EXPECT_THAT(std::string(tensor.status().message()), HasSubstr("--q")) << text;
  }
}

TEST(TensorInput, DeepNestingIsAnError) {
  EXPECT_FALSE(ReadTensor("--q", std::string(100000, '[') + std::string(100000, ']'), 4).ok());
  EXPECT_FALSE(ReadTensor("--q", "[[[[[[[[[1]]]]]]]]]", 4).ok()) << "nine dimensions";
}

TEST(TensorInput, FilesAreRead) {
  const std::string json = ::testing::TempDir() + "/attnctl_input.json";
  std::ofstream(json) << "[[1, 2]]";
  const auto list = ReadTensor("--x", json, 3);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->shape(), ElementsAre(1, 1, 2));

  const std::string file = ::testing::TempDir() + "/attnctl_input.safetensors";
  const uint16_t halves[] = {0x3c00, 0xc000};  // 1, -2
  const NamedTensor tensor{"q", {DType::kF16, {2}, halves}};
  ASSERT_TRUE(WriteSafetensors(file, {tensor}, {}).ok());
  const auto half = ReadTensor("--x", file + "#q", 3);
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_EQ(half->dtype(), v1::DTYPE_F16);
  EXPECT_THAT(half->shape(), ElementsAre(1, 1, 2));
  EXPECT_THAT(client::ToFloats(*half).value(), ElementsAre(1, -2));
  const auto missing = ReadTensor("--x", file + "#k", 3);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("has no tensor \"k\"; it has q"));
}

TEST(TensorInput, NumbersBeyondF32AreOutOfRange) {
  for (const char* text : {"[1e400, 2]", "[-1e400]", "[1e39]", "[[-3.5e38, 1]]"}) {
    const auto tensor = ReadTensor("--q", text, 4);
    EXPECT_THAT(std::string(tensor.status().message()), HasSubstr("out of range")) << text;
  }
  EXPECT_TRUE(ReadTensor("--q", "[3.4028234e38, 1e-400]", 4).ok());
}

TEST(TensorInput, RandomTensorDependsOnTheSeedOnly) {
  const v1::Tensor tensor = RandomTensor(3, 5, 1);
  EXPECT_THAT(tensor.shape(), ElementsAre(1, 3, 5));
  EXPECT_EQ(tensor.data(), RandomTensor(3, 5, 1).data());
  EXPECT_NE(tensor.data(), RandomTensor(3, 5, 2).data());
  EXPECT_THAT(client::ToFloats(tensor).value(),
              Each(testing::AllOf(testing::Ge(-1.0f), testing::Lt(1.0f))));
}

TEST(Stages, AreParsedByName) {
  EXPECT_THAT(ParseStages("weights,lse").value(), ElementsAre(v1::STAGE_WEIGHTS, v1::STAGE_LSE));
  EXPECT_THAT(ParseStages("").value(), IsEmpty());
  EXPECT_FALSE(ParseStages("weights,values").ok());
  EXPECT_FALSE(ParseStages("unspecified").ok());
}

}  // namespace
}  // namespace attnserve::ctl
