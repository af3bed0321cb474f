// The attention layers of a trained model over RPC: Forward, Decode token by token and in chunks of
// 7 against activations computed in float64.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>

#include "attnserve/client/client.h"
#include "gtest/gtest.h"
#include "lib/attention/reference.h"
#include "tests/rpc/test_server.h"
#include "tests/unit/attention/error_bound.h"
#include "tests/unit/attention/tensor_file.h"

namespace attnserve {
namespace {

namespace fs = std::filesystem;
namespace v1 = attnserve::v1;
using reference::Values;

constexpr int64_t kTokens = 48, kWidth = 64;
constexpr int kLayers = 5;

Values Transposed(const FileTensor& tensor) {
  const size_t out = static_cast<size_t>(tensor.shape[0]),
               in = static_cast<size_t>(tensor.shape[1]);
  Values result(tensor.values.size());
  for (size_t o = 0; o < out; ++o) {
    for (size_t i = 0; i < in; ++i) result[i * out + o] = tensor.values[o * in + i];
  }
  return result;
}

class TrainedLayersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path folder = fs::path(ATTNSERVE_SHARED_DIR) / "models" / "stories260k";
    if (!fs::is_directory(folder)) GTEST_SKIP() << folder << " is absent";
    weights_ = ReadTensorFile((folder / "model.safetensors").string());
    expected_ = ReadTensorFile((folder / "expected_attention.safetensors").string());
    ASSERT_TRUE(weights_.has_value() && expected_.has_value());
    server_ = std::make_unique<testing::TestServer>([&folder](ServerOptions* options) {
      options->models = {{"stories", folder.string()}};
    });
    auto client = client::Client::Connect(server_->address());
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  std::vector<float> Input(int layer, int64_t begin, int64_t end) const {
    const Values& x = expected_->tensors.at("layer." + std::to_string(layer) + ".input").values;
    return {x.begin() + begin * kWidth, x.begin() + end * kWidth};
  }

  // Largest |actual - expected| / bound over the layer's outputs; the bound comes from float32's
  // unit roundoff and the values involved.
  void ExpectOutput(int layer, const std::vector<float>& actual) const {
    LayerSpec spec;
    spec.input_size = spec.output_size = kWidth;
    spec.head_count = 8;
    spec.kv_head_count = 4;
    spec.key_head_size = spec.value_head_size = 8;
    spec.output_projection = true;
    spec.attention.causal = true;
    spec.attention.position = RotaryPosition{};
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    reference::Weights weights;
    weights.query = Transposed(weights_->tensors.at(prefix + "q_proj.weight"));
    weights.key = Transposed(weights_->tensors.at(prefix + "k_proj.weight"));
    weights.value = Transposed(weights_->tensors.at(prefix + "v_proj.weight"));
    weights.output = Transposed(weights_->tensors.at(prefix + "o_proj.weight"));
    reference::Input input;
    input.query_count = kTokens;
    const std::string facts = "layer." + std::to_string(layer) + ".";
    input.x = expected_->tensors.at(facts + "input").values;
    Precision precision;
    precision.input = 0x1p-24;  // the file's inputs are rounded to F32
    const ErrorBounds bounds =
        BoundErrors(spec, weights, input, reference::Run(spec, weights, input), precision);
    const Values& expected = expected_->tensors.at(facts + "output").values;
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], bounds.output[i] + 0x1p-24 * std::fabs(expected[i]))
          << "element " << i;
    }
  }

  void DecodeInChunks(int64_t chunk) {
    v1::CreateSessionRequest request;
    request.set_model("stories");
    auto session = client_->CreateSession(request);
    ASSERT_TRUE(session.ok()) << session.status();
    for (int layer = 0; layer < kLayers; ++layer) {
      SCOPED_TRACE("layer " + std::to_string(layer));
      std::vector<float> output;
      for (int64_t begin = 0; begin < kTokens; begin += chunk) {
        const int64_t end = std::min(kTokens, begin + chunk);
        v1::DecodeRequest step;
        step.set_layer(layer);
        *step.mutable_x() = client::F32Tensor(Input(layer, begin, end), {1, end - begin, kWidth});
        const auto reply = session->Decode(std::move(step));
        ASSERT_TRUE(reply.ok()) << reply.status();
        const auto values = client::F32Values(reply->output());
        ASSERT_TRUE(values.ok()) << values.status();
        output.insert(output.end(), values->begin(), values->end());
      }
      ASSERT_NO_FATAL_FAILURE(ExpectOutput(layer, output));
    }
  }

  std::optional<TensorFile> weights_, expected_;
  std::unique_ptr<testing::TestServer> server_;
  std::optional<client::Client> client_;
};

TEST_F(TrainedLayersTest, ForwardGivesTheExpectedActivations) {
  for (int layer = 0; layer < kLayers; ++layer) {
    SCOPED_TRACE("layer " + std::to_string(layer));
    v1::ForwardRequest request;
    request.set_model("stories");
    request.set_layer(layer);
    *request.mutable_x() = client::F32Tensor(Input(layer, 0, kTokens), {1, kTokens, kWidth});
    const auto reply = client_->Forward(request);
    ASSERT_TRUE(reply.ok()) << reply.status();
    const auto values = client::F32Values(reply->output());
    ASSERT_TRUE(values.ok()) << values.status();
    ASSERT_NO_FATAL_FAILURE(ExpectOutput(layer, {values->begin(), values->end()}));
  }
}

TEST_F(TrainedLayersTest, DecodeTokenByTokenGivesTheExpectedActivations) { DecodeInChunks(1); }

TEST_F(TrainedLayersTest, DecodeInChunksOfSevenGivesTheExpectedActivations) { DecodeInChunks(7); }

}  // namespace
}  // namespace attnserve
