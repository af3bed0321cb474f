// Deadlines, cancellation, start and end of a server.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/rpc/standard_services.h"
#include "tests/rpc/test_server.h"

namespace attnserve::testing {
namespace {

grpc::Status Attend(v1::AttentionService::Stub& stub, grpc::ClientContext* context) {
  v1::AttendResponse response;
  return stub.Attend(context, LongAttend(), &response);
}

// The server gives up what its client no longer waits for: by its own clock, or because the client
// has left.
TEST(Deadline, EndsACallThatRuns) {
  TestServer server;
  const auto given_up = [&] {
    return server.Metric("attnserve_calls_cancelled_total{reason=\"deadline\"}") +
           server.Metric("attnserve_calls_cancelled_total{reason=\"cancelled\"}");
  };
  // A deadline may also pass before the request has arrived: then the next is longer.
  int calls = 0;
  for (int64_t milliseconds = 100; given_up() == 0 && milliseconds < 2000; milliseconds *= 2) {
    ++calls;
    grpc::ClientContext context;
    const v1::AttendRequest request = LongAttend();
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(milliseconds));
    v1::AttendResponse response;
    EXPECT_EQ(server.attention().Attend(&context, request, &response).error_code(),
              grpc::DEADLINE_EXCEEDED);
    EXPECT_TRUE(
        WaitFor([&] { return server.Metric("attnserve_rpc_in_flight{method=\"Attend\"}") == 0; }));
  }
  EXPECT_GE(given_up(), 1);
  EXPECT_LE(given_up(), calls);
}

TEST(Deadline, PastOneAppliesNothing) {
  TestServer server;
  const std::string session = server.TinySession();
  grpc::ClientContext late;
  late.set_deadline(std::chrono::system_clock::now() - std::chrono::seconds(1));
  v1::DecodeResponse response;
  EXPECT_EQ(server.attention().Decode(&late, TinyStep(session, 1, 1), &response).error_code(),
            grpc::DEADLINE_EXCEEDED);
  grpc::ClientContext context;
  ASSERT_TRUE(server.attention().Decode(&context, TinyStep(session, 1, 1), &response).ok());
  EXPECT_EQ(response.position(), 0);
}

TEST(Cancellation, EndsACallThatRuns) {
  TestServer server;
  grpc::ClientContext context;
  auto status =
      std::async(std::launch::async, [&] { return Attend(server.attention(), &context); });
  EXPECT_TRUE(
      WaitFor([&] { return server.Metric("attnserve_rpc_in_flight{method=\"Attend\"}") == 1; }));
  context.TryCancel();
  EXPECT_EQ(status.get().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(WaitFor(
      [&] { return server.Metric("attnserve_calls_cancelled_total{reason=\"cancelled\"}") == 1; }));
}

TEST(Cancellation, OfABatchAppliesWholeStepsOnly) {
  TestServer server;
  v1::DecodeBatchRequest batch;
  std::vector<std::string> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(server.TinySession());
  for (uint32_t i = 0; i < 200; ++i) *batch.add_steps() = TinyStep(ids[i % 4], 7, i);
  for (const int delay_ms : {0, 1, 3, 10}) {
    grpc::ClientContext context;
    v1::DecodeBatchResponse response;
    auto call = std::async(std::launch::async, [&] {
      return server.attention().DecodeBatch(&context, batch, &response);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    context.TryCancel();
    call.wait();
  }
  EXPECT_TRUE(WaitFor(
      [&] { return server.Metric("attnserve_rpc_in_flight{method=\"DecodeBatch\"}") == 0; }));
  for (const std::string& id : ids) {
    v1::DecodeResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(server.attention().Decode(&context, TinyStep(id, 7, 1), &response).ok());
    EXPECT_EQ(response.position() % 7, 0);
  }
}

TEST(Drain, FinishesWhatRunsAndRefusesWhatComes) {
  TestServer server(
      [](ServerOptions* options) { options->drain_timeout = std::chrono::minutes(10); });
  const std::string session = server.TinySession();
  grpc::ClientContext running_context, stream_context;
  auto running =
      std::async(std::launch::async, [&] { return Attend(server.attention(), &running_context); });
  const auto stream = server.attention().StreamDecode(&stream_context);
  EXPECT_TRUE(WaitFor([&] {
    return server.Metric("attnserve_rpc_in_flight{method=\"Attend\"}") == 1 &&
           server.Metric("attnserve_rpc_in_flight{method=\"StreamDecode\"}") == 1;
  }));
  HealthWatch watch(server.channel(), "");
  EXPECT_EQ(watch.Next(), "SERVING");
  auto drained = std::async(std::launch::async, [&] { return server.server().Drain(); });
  EXPECT_EQ(watch.Next(), "NOT_SERVING");
  // An idle stream ends, with the reason.
  v1::StreamDecodeResponse reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(Summary(stream->Finish()), "UNAVAILABLE DRAINING");
  // The long call still runs, so the server still answers.
  v1::DecodeResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(Summary(server.attention().Decode(&context, TinyStep(session, 1, 1), &response)),
            "UNAVAILABLE DRAINING");
  EXPECT_TRUE(running.get().ok());
  EXPECT_TRUE(drained.get());
}

TEST(Drain, GivesUpAfterItsTimeout) {
  TestServer server(
      [](ServerOptions* options) { options->drain_timeout = std::chrono::milliseconds(50); });
  grpc::ClientContext context;
  auto running =
      std::async(std::launch::async, [&] { return Attend(server.attention(), &context); });
  EXPECT_TRUE(
      WaitFor([&] { return server.Metric("attnserve_rpc_in_flight{method=\"Attend\"}") == 1; }));
  EXPECT_FALSE(server.server().Drain());
  EXPECT_FALSE(running.get().ok());
}

TEST(Start, TakenAddressIsRefused) {
  TestServer server;
  ServerOptions options;
  options.listen = {server.address()};
  options.http = "";
  const auto second = Server::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(std::string(second.status().message()).find(server.address()), std::string::npos);
  options.listen = {"127.0.0.1:0"};
  options.http = server.server().http_address();
  const auto third = Server::Start(options);
  ASSERT_FALSE(third.ok());
  EXPECT_NE(std::string(third.status().message()).find(options.http), std::string::npos);
}

TEST(Start, UnixSocketServes) {
  TemporaryFolder folder;
  const std::string address = "unix:" + folder.path() + "/socket";
  TestServer server([&](ServerOptions* options) { options->listen = {address, "127.0.0.1:0"}; });
  EXPECT_EQ(server.server().grpc_addresses()[0], address);
  EXPECT_EQ(CheckHealth(server.channel(), ""), "SERVING");
}

// The executable in a process of its own.
class Process {
 public:
  // `descriptors`: the most it may have open; 0: as many as this process.
  explicit Process(std::vector<std::string> arguments, rlim_t descriptors = 0) {
    int out[2];
    EXPECT_EQ(pipe(out), 0);
    arguments.insert(arguments.begin(), ATTNSERVE_BINARY_DIR "/bin/attnserve");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      const rlimit limit = {descriptors, descriptors};
      if (descriptors > 0) setrlimit(RLIMIT_NOFILE, &limit);
      dup2(out[1], STDOUT_FILENO);
      close(out[0]);
      close(out[1]);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(out[1]);
    out_ = fdopen(out[0], "r");
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
    fclose(out_);
  }

  std::string ReadLine() {
    std::string line;
    for (int c = 0; (c = fgetc(out_)) != EOF && c != '\n';) line += static_cast<char>(c);
    return line;
  }
  void Signal(int signal) { kill(pid_, signal); }
  // Exit status, or 128 + the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
  FILE* out_ = nullptr;
};

std::vector<std::string> Arguments(const std::string& folder) {
  std::vector<std::string> arguments = {"--listen",    "127.0.0.1:0", "--http",
                                        "127.0.0.1:0", "--log_level", "error"};
  for (const ModelSource& source : WriteTestModels(folder)) {
    arguments.push_back("--model");
    arguments.push_back(source.name + "=" + source.path);
  }
  return arguments;
}

TEST(Process, TerminationUnderLoadLosesNothing) {
  TemporaryFolder folder;
  Process process(Arguments(folder.path()));
  const std::vector<std::string> words = absl::StrSplit(process.ReadLine(), ' ');
  ASSERT_EQ(words.size(), 6u);
  EXPECT_EQ(words[0] + words[1] + words[2], "attnserveready:grpc");
  EXPECT_EQ(words[4], "http");
  EXPECT_NE(Http(words[5], "GET", "/readyz").find(" 200 OK"), std::string::npos);
  std::atomic<int> succeeded{0};
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < 3; ++c) {
    clients.emplace_back([&, c] {
      const auto channel = grpc::CreateChannel(words[3], grpc::InsecureChannelCredentials());
      const auto attention = v1::AttentionService::NewStub(channel);
      const auto sessions = v1::SessionService::NewStub(channel);
      v1::CreateSessionRequest create;
      create.set_model("tiny");
      v1::CreateSessionResponse created;
      grpc::ClientContext create_context;
      ASSERT_TRUE(sessions->CreateSession(&create_context, create, &created).ok());
      for (uint32_t i = 0;; ++i) {
        grpc::ClientContext context;
        v1::DecodeResponse response;
        const grpc::Status status = attention->Decode(
            &context, TinyStep(created.session().session_id(), 100, c + i), &response);
        if (!status.ok()) {
          // Refused, never broken off.
          EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE) << status.error_message();
          return;
        }
        EXPECT_EQ(response.position(), int64_t{100} * (i % 40));
        ++succeeded;
        if (i % 40 == 39) {
          v1::ResetCacheRequest reset;
          reset.set_session_id(created.session().session_id());
          v1::ResetCacheResponse reset_response;
          grpc::ClientContext reset_context;
          if (!sessions->ResetCache(&reset_context, reset, &reset_response).ok()) return;
        }
      }
    });
  }
  EXPECT_TRUE(WaitFor([&] { return succeeded > 30; }));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  for (std::thread& client : clients) client.join();
}

// gRPC gives up listening when there is no file descriptor left.
TEST(Process, IsUnhealthyOnceItCannotBeConnectedTo) {
  constexpr rlim_t kDescriptors = 256;
  TemporaryFolder folder;
  Process process(Arguments(folder.path()), kDescriptors);
  const std::vector<std::string> words = absl::StrSplit(process.ReadLine(), ' ');
  ASSERT_EQ(words.size(), 6u);
  EXPECT_NE(Http(words[5], "GET", "/healthz").find(" 200 OK"), std::string::npos);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port =
      htons(static_cast<uint16_t>(std::stoi(words[3].substr(words[3].rfind(':') + 1))));
  std::vector<int> sockets;
  for (rlim_t i = 0; i < kDescriptors; ++i) {
    sockets.push_back(socket(AF_INET, SOCK_STREAM, 0));
    (void)connect(sockets.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  for (const int socket : sockets) close(socket);
  for (const char* page : {"/healthz", "/readyz"}) {
    EXPECT_TRUE(WaitFor([&] {
      return Http(words[5], "GET", page).find(" 503 ") != std::string::npos;
    })) << page;
  }
}

TEST(Process, SecondSignalEndsAtOnce) {
  TemporaryFolder folder;
  Process process(Arguments(folder.path()));
  const std::vector<std::string> words = absl::StrSplit(process.ReadLine(), ' ');
  ASSERT_EQ(words.size(), 6u);
  const auto stub = v1::AttentionService::NewStub(
      grpc::CreateChannel(words[3], grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  auto running = std::async(std::launch::async, [&] { return Attend(*stub, &context); });
  EXPECT_TRUE(WaitFor([&] {
    return Http(words[5], "GET", "/metrics").find("attnserve_rpc_in_flight{method=\"Attend\"} 1") !=
           std::string::npos;
  }));
  process.Signal(SIGINT);
  EXPECT_TRUE(
      WaitFor([&] { return Http(words[5], "GET", "/readyz").find(" 503 ") != std::string::npos; }));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_FALSE(running.get().ok());
}

TEST(Process, MissingModelIsRefused) {
  Process process({"--listen", "127.0.0.1:0", "--http", "off", "--model", "a=/nonexistent"});
  EXPECT_EQ(process.ReadLine(), "");
  EXPECT_EQ(process.Wait(), 1);
}

}  // namespace
}  // namespace attnserve::testing
