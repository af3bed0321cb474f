// A trained model in Hugging Face layout: its attention layers against outputs that were computed
// in float64 by somebody else's code.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/attention/reference.h"
#include "lib/model/hugging_face.h"
#include "lib/model/model.h"
#include "lib/model/read_only_file.h"
#include "lib/model/safetensors.h"
#include "lib/model/weight_loader.h"
#include "tests/unit/attention/error_bound.h"
#include "tests/unit/model/loaded_weights.h"
#include "tests/unit/model/run_layer.h"

namespace attnserve {
namespace {

const char kFolder[] = ATTNSERVE_SHARED_DIR "/models/stories260k";

std::vector<float> Floats(const SafetensorsFile& file, const std::string& name) {
  const auto tensor = file.Load(name);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  std::vector<float> values(static_cast<size_t>(tensor->view.elements()));
  LoadAsF32(tensor->view.dtype, tensor->view.data, tensor->view.elements(), values.data());
  return values;
}

class TrainedModel : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << kFolder << " is not there";
    const auto open = [](const std::string& name) {
      auto file = SafetensorsFile::Open(absl::StrCat(kFolder, "/", name));
      EXPECT_TRUE(file.ok()) << file.status();
      return *std::move(file);
    };
    expected_ = open("expected_attention.safetensors");
    file_ = open("model.safetensors");
    const auto config = ReadTextFile(absl::StrCat(kFolder, "/config.json"), 1 << 20);
    ASSERT_TRUE(config.ok());
    auto description = DescribeHuggingFaceModel(*config, file_->names());
    ASSERT_TRUE(description.ok()) << description.status();
    description_ = *std::move(description);
  }

  // Compares output [48, 64] of `layer` with the published one, each element within the error of
  // `unit`-precision arithmetic and of the float32 file.
  void ExpectPublished(size_t layer, const std::vector<double>& output, double unit) {
    LayerSpec spec = description_.layers[layer];
    const auto loaded = LoadLayer(*file_, description_.sources[layer], &spec);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const reference::Weights weights = ReferenceWeights(loaded->weights);
    const reference::Input input = InputOf(layer);
    const reference::Output result = reference::Run(spec, weights, input);
    Precision precision;
    precision.unit = unit;
    precision.exp = 4.0 * unit;
    precision.input = 0x1p-24;  // the file's rounding of x
    const ErrorBounds bounds = BoundErrors(spec, weights, input, result, precision);
    const std::vector<float> expected =
        Floats(*expected_, absl::StrCat("layer.", layer, ".output"));
    ASSERT_EQ(expected.size(), output.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const double rounding = RoundingError(DType::kF32, expected[i]);
      ASSERT_NEAR(output[i], expected[i], bounds.output[i] + rounding)
          << "layer " << layer << " element " << i;
    }
  }

  reference::Input InputOf(size_t layer) const {
    const std::vector<float> x = Floats(*expected_, absl::StrCat("layer.", layer, ".input"));
    reference::Input input;
    input.query_count = 48;
    input.x.assign(x.begin(), x.end());
    return input;
  }

  std::unique_ptr<SafetensorsFile> expected_, file_;
  ModelDescription description_;
};

TEST_F(TrainedModel, ConfigIsUnderstood) {
  ASSERT_EQ(description_.layers.size(), 5u);
  EXPECT_EQ(description_.format, "llama");
  EXPECT_EQ(description_.max_tokens, 512);
  EXPECT_EQ(description_.layers[4].head_count, 8);
  EXPECT_EQ(description_.layers[4].kv_head_count, 4);
  EXPECT_EQ(description_.layers[4].key_head_size, 8);
}

TEST_F(TrainedModel, ReferenceGivesThePublishedOutputs) {
  for (size_t layer = 0; layer < description_.layers.size(); ++layer) {
    LayerSpec spec = description_.layers[layer];
    const auto loaded = LoadLayer(*file_, description_.sources[layer], &spec);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const reference::Output result =
        reference::Run(spec, ReferenceWeights(loaded->weights), InputOf(layer));
    ExpectPublished(layer, result.output, 0x1p-53);
  }
}

TEST_F(TrainedModel, LoadedLayersGiveThePublishedOutputs) {
  for (const GemmBackend backend : {GemmBackend::kNative, GemmBackend::kOneDnn}) {
    const auto model = LoadModel("stories", kFolder, backend);
    ASSERT_TRUE(model.ok()) << model.status();
    for (size_t layer = 0; layer < description_.layers.size(); ++layer) {
      const std::vector<float> output =
          RunSelfAttention((*model)->layer(static_cast<int64_t>(layer)),
                           Floats(*expected_, absl::StrCat("layer.", layer, ".input")));
      ExpectPublished(layer, {output.begin(), output.end()}, 0x1p-24);
    }
  }
}

}  // namespace
}  // namespace attnserve
