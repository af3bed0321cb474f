// The attention layers of a trained model over RPC: Forward, Decode token by token and in chunks of
// 7 against activations computed in float64.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "attnserve/client/client.h"
#include "gtest/gtest.h"
#include "lib/attention/reference.h"
#include "tests/rpc/test_server.h"
#include "tests/unit/attention/error_bound.h"
#include "tests/unit/attention/trained_layer.h"

namespace attnserve {
namespace {

namespace v1 = attnserve::v1;
using reference::Values;

constexpr int64_t kTokens = TrainedModel::kTokens, kWidth = TrainedModel::kWidth;
constexpr int kLayers = TrainedModel::kLayers;

class TrainedLayersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::optional<std::string> folder = TrainedModel::Folder();
    if (!folder.has_value()) GTEST_SKIP() << "../shared/models/stories260k is absent";
    model_.emplace(*folder);
    server_ = std::make_unique<testing::TestServer>([&folder](ServerOptions* options) {
      options->models = {{"stories", *folder}};
    });
    auto client = client::Client::Connect(server_->address());
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  std::vector<float> Input(int layer, int64_t begin, int64_t end) const {
    const Values x = model_->layer(layer).input.x;
    return {x.begin() + begin * kWidth, x.begin() + end * kWidth};
  }

  // Every output is within a bound that comes from float32's unit roundoff and the values involved.
  void ExpectOutput(int layer, const std::vector<float>& actual) const {
    const TrainedLayer trained = model_->layer(layer);
    Precision precision;
    precision.input = 0x1p-24;  // the file's inputs are rounded to F32
    const ErrorBounds bounds =
        BoundErrors(trained.spec, trained.weights, trained.input,
                    reference::Run(trained.spec, trained.weights, trained.input), precision);
    const Values& expected = trained.expected_output;
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

  std::optional<TrainedModel> model_;
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
