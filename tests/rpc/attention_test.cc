// Forward, Attend, Decode and DecodeBatch over the wire: what comes back.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/element_type.h"
#include "tests/rpc/test_server.h"

namespace attnserve::testing {
namespace {

class Attention : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new TestServer(); }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }

  static v1::ForwardResponse Forward(const v1::ForwardRequest& request) {
    v1::ForwardResponse response;
    grpc::ClientContext context;
    const grpc::Status status = server_->attention().Forward(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static v1::AttendResponse Attend(const v1::AttendRequest& request) {
    v1::AttendResponse response;
    grpc::ClientContext context;
    const grpc::Status status = server_->attention().Attend(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static v1::DecodeResponse Decode(const v1::DecodeRequest& request) {
    v1::DecodeResponse response;
    grpc::ClientContext context;
    const grpc::Status status = server_->attention().Decode(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static v1::DecodeBatchResponse Batch(const v1::DecodeBatchRequest& request) {
    v1::DecodeBatchResponse response;
    grpc::ClientContext context;
    const grpc::Status status = server_->attention().DecodeBatch(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  static TestServer* server_;
};

TestServer* Attention::server_ = nullptr;

// `tensor` in the form `values`, as type `dtype`.
v1::Tensor AsValues(const v1::Tensor& tensor, v1::DType dtype) {
  v1::Tensor result;
  result.set_dtype(dtype);
  *result.mutable_shape() = tensor.shape();
  const std::vector<float> values = Floats(tensor);
  result.mutable_values()->Assign(values.begin(), values.end());
  return result;
}

// "Hello shiny sun!": scores, weights and context of the query "shiny", without scaling.
TEST_F(Attention, WorkedExampleHasThePublishedNumbers) {
  v1::AttendRequest request;
  for (auto* tensor : {request.mutable_k(), request.mutable_v()}) {
    tensor->set_dtype(v1::DTYPE_F32);
    for (const int64_t size : {1, 1, 3, 3}) tensor->add_shape(size);
    for (const float value : {0.34f, 0.22f, 0.54f, 0.53f, 0.34f, 0.98f, 0.29f, 0.54f, 0.93f}) {
      tensor->add_values(value);
    }
  }
  auto* q = request.mutable_q();
  q->set_dtype(v1::DTYPE_F32);
  for (const int64_t size : {1, 1, 1, 3}) q->add_shape(size);
  for (const float value : {0.53f, 0.34f, 0.98f}) q->add_values(value);
  request.mutable_options()->set_scale(1.0f);
  request.add_stages(v1::STAGE_SCORES);
  request.add_stages(v1::STAGE_WEIGHTS);
  const v1::AttendResponse response = Attend(request);
  // Half a unit of the last decimal; the weights were computed from exponentials rounded to 4
  // decimals (half a unit of that over their sum, 9.5606).
  const auto expect = [](const v1::Tensor& tensor, const std::vector<double>& expected,
                         double half_unit) {
    ASSERT_EQ(tensor.values_size(), static_cast<int>(expected.size()));
    EXPECT_TRUE(tensor.data().empty());
    for (int i = 0; i < tensor.values_size(); ++i) {
      EXPECT_NEAR(tensor.values(i), expected[static_cast<size_t>(i)], half_unit * 1.01);
    }
  };
  ASSERT_EQ(response.stages_size(), 2);
  expect(response.stages(0).tensor(), {0.7842, 1.3569, 1.2487}, 1e-6);
  expect(response.stages(1).tensor(), {0.2291336, 0.4062648, 0.3646016}, 1e-6);
  expect(response.output(), {0.39896, 0.38542, 0.86095}, 5e-6);
}

TEST_F(Attention, DecodeEqualsForwardBitForBit) {
  v1::ForwardRequest forward;
  forward.set_model("tiny");
  *forward.mutable_x() = RandomTensor({1, 9, kTinyWidth}, 3);
  const std::vector<float> expected = Floats(Forward(forward).output());
  const std::vector<float> x = Floats(forward.x());
  const std::string session = server_->TinySession();
  std::vector<float> decoded;
  for (const int64_t tokens : {4, 1, 1, 3}) {
    const size_t begin = decoded.size();
    v1::DecodeRequest step;
    step.set_session_id(session);
    *step.mutable_x() = FloatTensor(
        {1, tokens, kTinyWidth},
        std::vector<float>(x.begin() + static_cast<std::ptrdiff_t>(begin),
                           x.begin() + static_cast<std::ptrdiff_t>(begin) + tokens * kTinyWidth));
    const std::vector<float> output = Floats(Decode(step).output());
    decoded.insert(decoded.end(), output.begin(), output.end());
  }
  ASSERT_EQ(decoded.size(), expected.size());
  EXPECT_EQ(std::memcmp(decoded.data(), expected.data(), expected.size() * sizeof(float)), 0);
}

TEST_F(Attention, ValuesAreAnsweredWithTheSameNumbers) {
  v1::ForwardRequest request;
  request.set_model("tiny");
  *request.mutable_x() = RandomTensor({1, 3, kTinyWidth}, 3);
  request.add_stages(v1::STAGE_LSE);
  const v1::ForwardResponse data = Forward(request);
  *request.mutable_x() = AsValues(request.x(), v1::DTYPE_F32);
  const v1::ForwardResponse values = Forward(request);
  const std::vector<float> expected = Floats(data.output());
  ASSERT_EQ(values.output().values_size(), static_cast<int>(expected.size()));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), values.output().values().begin()));
  ASSERT_EQ(values.stages_size(), 2);  // one a layer
  EXPECT_EQ(values.stages(0).layer(), 0);
  EXPECT_EQ(values.stages(1).layer(), 1);
  EXPECT_EQ(values.stages(0).tensor().values_size(), 4 * 3);
}

TEST_F(Attention, HalfTypesAreAnsweredInTheSameType) {
  for (const v1::DType dtype : {v1::DTYPE_F16, v1::DTYPE_BF16}) {
    v1::ForwardRequest request;
    request.set_model("tiny");
    const std::vector<float> x = Floats(RandomTensor({1, 3, kTinyWidth}, 3));
    v1::Tensor* tensor = request.mutable_x();
    tensor->set_dtype(dtype);
    for (const int64_t size : {int64_t{1}, int64_t{3}, kTinyWidth}) tensor->add_shape(size);
    for (const float value : x) {
      const uint16_t bits = dtype == v1::DTYPE_F16 ? F32ToF16(value) : F32ToBf16(value);
      tensor->mutable_data()->append(reinterpret_cast<const char*>(&bits), 2);
    }
    request.add_stages(v1::STAGE_LSE);
    const v1::ForwardResponse data = Forward(request);
    EXPECT_EQ(data.output().dtype(), dtype);
    EXPECT_EQ(data.output().data().size(), 3u * kTinyWidth * 2u);
    EXPECT_EQ(data.stages(0).tensor().dtype(), v1::DTYPE_F32);
    // The same numbers as `values`, rounded here and there in the same way.
    *request.mutable_x() = AsValues(RandomTensor({1, 3, kTinyWidth}, 3), dtype);
    const v1::ForwardResponse values = Forward(request);
    ASSERT_EQ(values.output().values_size(), 3 * kTinyWidth);
    for (int i = 0; i < values.output().values_size(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, data.output().data().data() + 2 * i, 2);
      EXPECT_EQ(values.output().values(i),
                dtype == v1::DTYPE_F16 ? F16ToF32(bits) : Bf16ToF32(bits));
    }
  }
}

TEST_F(Attention, PresentJoinsPastAndNew) {
  v1::AttendRequest request;
  *request.mutable_q() = RandomTensor({1, 4, 2, 8}, 1);
  *request.mutable_k() = RandomTensor({1, 2, 2, 8}, 2);
  *request.mutable_v() = RandomTensor({1, 2, 2, 6}, 3);
  *request.mutable_past_key() = RandomTensor({1, 2, 3, 8}, 4);
  *request.mutable_past_value() = RandomTensor({1, 2, 3, 6}, 5);
  request.set_return_present(true);
  const v1::AttendResponse response = Attend(request);
  const auto joined = [](const v1::Tensor& past, const v1::Tensor& fresh, int64_t size) {
    const std::vector<float> a = Floats(past), b = Floats(fresh);
    std::vector<float> all;
    for (std::ptrdiff_t head = 0; head < 2; ++head) {
      all.insert(all.end(), a.begin() + head * 3 * size, a.begin() + (head + 1) * 3 * size);
      all.insert(all.end(), b.begin() + head * 2 * size, b.begin() + (head + 1) * 2 * size);
    }
    return all;
  };
  EXPECT_EQ(Floats(response.present_key()), joined(request.past_key(), request.k(), 8));
  EXPECT_EQ(Floats(response.present_value()), joined(request.past_value(), request.v(), 6));
  EXPECT_EQ(response.output().shape(3), 6);
}

TEST_F(Attention, StepWithoutQueriesOnlyAppends) {
  const std::string session = server_->CoreSession();
  v1::DecodeRequest step = CoreStep(session, 3, 1);
  *step.mutable_q() = FloatTensor({1, 4, 0, 8}, {});
  const v1::DecodeResponse response = Decode(step);
  EXPECT_EQ(response.length(), 3);
  EXPECT_EQ(response.output().shape(2), 0);
  EXPECT_TRUE(response.output().data().empty());
}

TEST_F(Attention, StepWithoutAnythingChangesNothing) {
  const std::string session = server_->CoreSession();
  Decode(CoreStep(session, 3, 1));
  v1::DecodeRequest step;
  step.set_session_id(session);
  *step.mutable_q() = FloatTensor({1, 4, 0, 8}, {});
  *step.mutable_k() = *step.mutable_v() = FloatTensor({1, 2, 0, 8}, {});
  *step.mutable_positions() = Int64Tensor({0}, {});
  const v1::DecodeResponse response = Decode(step);
  EXPECT_EQ(response.position(), 3);
  EXPECT_EQ(response.length(), 3);
}

TEST_F(Attention, RequestIdAnswersTheFirstReplyAgain) {
  const std::string session = server_->TinySession();
  v1::DecodeRequest step = TinyStep(session, 2, 1);
  step.set_request_id("first");
  step.add_stages(v1::STAGE_LSE);
  const v1::DecodeResponse first = Decode(step);
  Decode(TinyStep(session, 1, 2));
  const v1::DecodeResponse again = Decode(step);
  EXPECT_FALSE(first.replayed());
  EXPECT_TRUE(again.replayed());
  EXPECT_EQ(again.output().SerializeAsString(), first.output().SerializeAsString());
  EXPECT_EQ(again.stages(0).SerializeAsString(), first.stages(0).SerializeAsString());
  EXPECT_EQ(again.position(), 0);
  EXPECT_EQ(again.length(), 2);
}

TEST_F(Attention, BatchAnswersEveryStepInOrder) {
  constexpr int kSessions = 5;
  v1::DecodeBatchRequest batch;
  std::vector<std::string> expected;
  std::vector<std::string> ids;
  for (int i = 0; i < kSessions; ++i) ids.push_back(server_->TinySession());
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < kSessions; ++i) {
      *batch.add_steps() = TinyStep(ids[i], round == 0 ? 3 : 1, 100 * i + round);
    }
  }
  // The same steps one by one, in other sessions.
  std::vector<std::string> others;
  for (int i = 0; i < kSessions; ++i) others.push_back(server_->TinySession());
  for (int i = 0; i < batch.steps_size(); ++i) {
    v1::DecodeRequest step = batch.steps(i);
    step.set_session_id(others[static_cast<size_t>(i % kSessions)]);
    expected.push_back(Decode(step).SerializeAsString());
  }
  const v1::DecodeBatchResponse response = Batch(batch);
  ASSERT_EQ(response.results_size(), batch.steps_size());
  for (int i = 0; i < response.results_size(); ++i) {
    EXPECT_EQ(Summary(response.results(i).status()), "OK");
    EXPECT_EQ(response.results(i).response().SerializeAsString(), expected[static_cast<size_t>(i)])
        << i;
  }
}

TEST_F(Attention, EmptyBatchIsAnswered) {
  EXPECT_EQ(Batch(v1::DecodeBatchRequest()).results_size(), 0);
}

TEST_F(Attention, FailedStepOfABatchFailsItsFollowersOnly) {
  const std::string bad = server_->TinySession(), good = server_->TinySession();
  v1::DecodeBatchRequest batch;
  *batch.add_steps() = TinyStep(bad, 1, 1);
  *batch.add_steps() = TinyStep(good, 1, 1);
  *batch.add_steps() = TinyStep(bad, 1, 2);
  batch.mutable_steps(2)->mutable_x()->mutable_data()->pop_back();
  *batch.add_steps() = TinyStep(bad, 1, 3);
  *batch.add_steps() = TinyStep(bad, 1, 4);
  batch.mutable_steps(4)->set_expected_position(1);  // does not help within a batch
  *batch.add_steps() = TinyStep(good, 1, 2);
  *batch.add_steps() = TinyStep("absent", 1, 2);
  *batch.add_steps() = TinyStep("absent", 1, 2);
  const v1::DecodeBatchResponse response = Batch(batch);
  const std::vector<std::string> expected = {
      "OK",
      "OK",
      "INVALID_ARGUMENT SIZE_MISMATCH steps[2].x",
      "ABORTED PREDECESSOR_FAILED",
      "ABORTED PREDECESSOR_FAILED",
      "OK",
      "NOT_FOUND SESSION_NOT_FOUND",
      "ABORTED PREDECESSOR_FAILED",
  };
  ASSERT_EQ(response.results_size(), static_cast<int>(expected.size()));
  for (int i = 0; i < response.results_size(); ++i) {
    EXPECT_EQ(Summary(response.results(i).status()), expected[static_cast<size_t>(i)]) << i;
    EXPECT_EQ(response.results(i).has_response(), expected[static_cast<size_t>(i)] == "OK") << i;
  }
  EXPECT_EQ(response.results(5).response().length(), 2);
  // A later batch starts afresh.
  v1::DecodeBatchRequest next;
  *next.add_steps() = TinyStep(bad, 1, 2);
  EXPECT_EQ(Batch(next).results(0).response().length(), 2);
}

}  // namespace
}  // namespace attnserve::testing
