#include <functional>

#include "absl/strings/str_format.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/check.h"

namespace attnserve::bench {
namespace {

constexpr int64_t kWidth = 64;

void CheckCall(const grpc::Status& status) {
  Check(status.ok() ? absl::OkStatus() : absl::UnknownError(status.error_message()));
}

// Half of the calls take at most so long.
double MedianOf(int calls, const std::function<void()>& call) {
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) seconds.push_back(TimeOf(call));
  return Median(std::move(seconds));
}

// One step after the other over one stream.
class StepStream {
 public:
  explicit StepStream(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::AttentionService::NewStub(channel)), stream_(stub_->StreamDecode(&context_)) {}
  ~StepStream() {
    stream_->WritesDone();
    while (stream_->Read(&response_)) {
    }
    CheckCall(stream_->Finish());
  }

  void Run(const v1::StreamDecodeRequest& request) {
    if (!stream_->Write(request) || !stream_->Read(&response_)) {
      Check(absl::UnknownError("the stream has ended"));
    }
    if (response_.result().status().code() != 0) {
      Check(absl::UnknownError(response_.result().status().message()));
    }
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamDecodeRequest, v1::StreamDecodeResponse>>
      stream_;
  v1::StreamDecodeResponse response_;
};

Line TimesEcho(const Bench& bench, const std::string& shape, const std::function<void()>& echo,
               const std::function<void()>& ours, const std::function<void()>& reset) {
  const int calls = bench.plan.quick ? 50 : 400;
  const auto echo_time = [&] {
    reset();
    return MedianOf(calls, echo);
  };
  const Comparison comparison =
      Compare(bench.plan.rounds, echo_time, [&] { return MedianOf(calls, ours); });
  return AtMost(1.3, LineOf(comparison, 1e6, "us p50", "latency", shape));
}

}  // namespace

void RpcLatency(const Bench& bench) {
  BenchServer server({kWidth, 4}, bench.plan.threads);
  EchoServer echo;
  client::Session session = server.NewSession();
  const auto reset = [&] { Check(session.ResetCache().status()); };
  v1::DecodeRequest step = server.Step(1);
  step.set_session_id(session.id());

  const auto ours_stub = v1::AttentionService::NewStub(server.channel());
  const auto echo_stub = v1::AttentionService::NewStub(echo.channel());
  const auto unary = [&](v1::AttentionService::Stub& stub) {
    v1::DecodeResponse response;
    grpc::ClientContext context;
    CheckCall(stub.Decode(&context, step, &response));
  };
  bench.table.Add(TimesEcho(
      bench, "Decode, one caller, d=64, beside an echo", [&] { unary(*echo_stub); },
      [&] { unary(*ours_stub); }, reset));

  v1::StreamDecodeRequest streamed;
  *streamed.mutable_step() = step;
  StepStream echo_stream(echo.channel()), our_stream(server.channel());
  bench.table.Add(TimesEcho(
      bench, "StreamDecode, one step at a time, beside an echo", [&] { echo_stream.Run(streamed); },
      [&] { our_stream.Run(streamed); }, reset));
}

}  // namespace attnserve::bench
