// Streams that end before their steps are answered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "tests/client/faulty_server.h"

namespace attnserve::client {
namespace {

using attnserve::testing::FaultyServer;

// Sends three steps of which one is answered; returns the outcomes.
std::vector<absl::StatusOr<v1::DecodeResponse>> Outcomes(DecodeStream& stream) {
  std::vector<std::future<absl::StatusOr<v1::DecodeResponse>>> futures;
  for (int i = 0; i < 3; ++i) futures.push_back(stream.Send(v1::DecodeRequest()));
  std::vector<absl::StatusOr<v1::DecodeResponse>> outcomes;
  for (auto& future : futures) outcomes.push_back(future.get());
  return outcomes;
}

TEST(BrokenStream, ErrorReachesEveryOutstandingStep) {
  FaultyServer server;
  server.BreakStreamAfter(1, grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  const Client client = server.Connect();
  const auto stream = client.OpenStream();
  const auto outcomes = Outcomes(*stream);
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0].status();
  EXPECT_TRUE(absl::IsUnavailable(outcomes[1].status())) << outcomes[1].status();
  EXPECT_TRUE(absl::IsUnavailable(outcomes[2].status())) << outcomes[2].status();
  EXPECT_TRUE(absl::IsUnavailable(stream->Close()));
  EXPECT_FALSE(stream->Send(v1::DecodeRequest()).get().ok());
}

TEST(BrokenStream, CleanEndWithoutAnswersIsAnErrorOfTheSteps) {
  FaultyServer server;
  server.BreakStreamAfter(1, grpc::Status::OK);
  const Client client = server.Connect();
  const auto stream = client.OpenStream();
  const auto outcomes = Outcomes(*stream);
  EXPECT_TRUE(outcomes[0].ok());
  EXPECT_FALSE(outcomes[1].ok());
  EXPECT_FALSE(outcomes[2].ok());
  EXPECT_TRUE(stream->Close().ok());
}

TEST(BrokenStream, DeadlineEndsTheStream) {
  FaultyServer server;
  ClientOptions options = FaultyServer::FastOptions();
  options.stream_timeout = std::chrono::milliseconds(100);
  const Client client = server.Connect(options);
  const auto stream = client.OpenStream();
  EXPECT_TRUE(stream->Send(v1::DecodeRequest()).get().ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_TRUE(absl::IsDeadlineExceeded(stream->Send(v1::DecodeRequest()).get().status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(stream->Close()));
}

TEST(BrokenStream, ServerThatIsNotThereFailsTheSteps) {
  auto server = std::make_unique<FaultyServer>();
  const Client client = server->Connect();
  server.reset();
  const auto stream = client.OpenStream();
  EXPECT_TRUE(absl::IsUnavailable(stream->Send(v1::DecodeRequest()).get().status()));
}

TEST(BrokenStream, DestructionEndsAnOpenStream) {
  FaultyServer server;
  const Client client = server.Connect();
  auto stream = client.OpenStream();
  auto future = stream->Send(v1::DecodeRequest());
  stream.reset();
  const absl::Status status = future.get().status();
  EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
}

}  // namespace
}  // namespace attnserve::client
