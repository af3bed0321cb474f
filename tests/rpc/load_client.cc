#include "tests/rpc/load_client.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "gtest/gtest.h"

namespace attnserve::testing {
namespace {

// Tokens [begin, end) of `sequence` have come back as `output`, by `route`.
void ExpectBits(std::string_view route, const KnownSequence& sequence, int64_t begin, int64_t end,
                const v1::Tensor& output) {
  const std::vector<float> actual = Floats(output);
  const size_t width = static_cast<size_t>(sequence.width);
  ASSERT_EQ(actual.size(), static_cast<size_t>(end - begin) * width) << route;
  const float* const expected = sequence.outputs.data() + begin * sequence.width;
  for (size_t i = 0; i < actual.size(); i += width) {
    ASSERT_EQ(std::memcmp(actual.data() + i, expected + i, width * sizeof(float)), 0)
        << route << " of tokens " << begin << " to " << end << ": token "
        << begin + static_cast<int64_t>(i / width) << " of " << sequence.tokens << ", model "
        << sequence.model << ", cache " << v1::DType_Name(sequence.cache_dtype);
  }
}

void ExpectReply(std::string_view route, const KnownSequence& sequence, int64_t begin, int64_t end,
                 const v1::DecodeResponse& response) {
  EXPECT_EQ(response.position(), begin) << route;
  EXPECT_EQ(response.length(), end) << route;
  ExpectBits(route, sequence, begin, end, response.output());
}

}  // namespace

std::string CreateSession(TestServer& server, const KnownSequence& sequence) {
  v1::CreateSessionRequest request;
  request.set_model(sequence.model);
  request.set_cache_dtype(sequence.cache_dtype);
  v1::CreateSessionResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.sessions().CreateSession(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.session().session_id();
}

v1::DecodeRequest StepOf(const KnownSequence& sequence, const std::string& session_id,
                         int64_t begin, int64_t end) {
  v1::DecodeRequest step;
  step.set_session_id(session_id);
  const auto inputs = sequence.inputs.begin();
  *step.mutable_x() = FloatTensor({1, end - begin, sequence.width},
                                  {inputs + begin * sequence.width, inputs + end * sequence.width});
  return step;
}

LoadClient::LoadClient(TestServer* server, const std::vector<const KnownSequence*>& sequences,
                       uint64_t seed)
    : server_(*server), dice_(seed) {
  for (const KnownSequence* sequence : sequences) {
    sessions_.push_back({sequence, CreateSession(server_, *sequence)});
  }
}

void LoadClient::Run() {
  while (!::testing::Test::HasFailure() && PickUnfinished() != nullptr) Act();
  for (const Session& session : sessions_) Delete(session);
}

void LoadClient::Act() {
  Session* const session = PickUnfinished();
  if (session->returns > 0 && dice_.Chance(0.05)) return GoBack(session);
  if (session->sequence->cache_dtype == v1::DTYPE_F32 && dice_.Chance(0.05)) {
    return Forward(*session->sequence);
  }
  switch (dice_.Between(0, 2)) {
    case 0:
      return Decode(NextChunk(session));
    case 1:
      return DecodeBatch(NextChunks());
    default:
      return StreamDecode(NextChunks());
  }
}

LoadClient::Session* LoadClient::PickUnfinished() {
  const size_t count = sessions_.size();
  const size_t first = static_cast<size_t>(dice_.Between(0, static_cast<int64_t>(count) - 1));
  for (size_t i = 0; i < count; ++i) {
    Session& session = sessions_[(first + i) % count];
    if (!session.finished()) return &session;
  }
  return nullptr;
}

int64_t LoadClient::DrawChunkSize() {
  if (dice_.Chance(0.4)) return 1;
  return dice_.Chance(0.5) ? dice_.Between(2, 16) : dice_.Between(17, 200);
}

LoadClient::Chunk LoadClient::NextChunk(Session* session) {
  const int64_t begin = session->length;
  session->length = std::min(session->sequence->tokens, begin + DrawChunkSize());
  return {session, begin, session->length};
}

std::vector<LoadClient::Chunk> LoadClient::NextChunks() {
  std::vector<Chunk> chunks;
  for (int64_t left = dice_.Between(1, 8); left > 0; --left) {
    if (Session* session = PickUnfinished()) chunks.push_back(NextChunk(session));
  }
  return chunks;
}

void LoadClient::Decode(const Chunk& chunk) {
  ExpectReply("Decode", *chunk.session->sequence, chunk.begin, chunk.end,
              testing::Decode(server_, chunk.Step()));
}

void LoadClient::DecodeBatch(const std::vector<Chunk>& chunks) {
  v1::DecodeBatchRequest request;
  for (const Chunk& chunk : chunks) *request.add_steps() = chunk.Step();
  v1::DecodeBatchResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server_.attention().DecodeBatch(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.results_size(), static_cast<int>(chunks.size()));
  for (size_t i = 0; i < chunks.size(); ++i) {
    const v1::DecodeResult& result = response.results(static_cast<int>(i));
    ASSERT_EQ(Summary(result.status()), "OK");
    ExpectReply("DecodeBatch", *chunks[i].session->sequence, chunks[i].begin, chunks[i].end,
                result.response());
  }
}

void LoadClient::StreamDecode(const std::vector<Chunk>& chunks) {
  grpc::ClientContext context;
  const auto stream = server_.attention().StreamDecode(&context);
  for (size_t i = 0; i < chunks.size(); ++i) {
    v1::StreamDecodeRequest request;
    request.set_correlation_id(static_cast<int64_t>(i));
    *request.mutable_step() = chunks[i].Step();
    ASSERT_TRUE(stream->Write(request));
  }
  ASSERT_TRUE(stream->WritesDone());
  size_t replies = 0;
  v1::StreamDecodeResponse reply;
  for (; stream->Read(&reply); ++replies) {
    const Chunk& chunk = chunks.at(static_cast<size_t>(reply.correlation_id()));
    ASSERT_EQ(Summary(reply.result().status()), "OK");
    ExpectReply("StreamDecode", *chunk.session->sequence, chunk.begin, chunk.end,
                reply.result().response());
  }
  EXPECT_EQ(replies, chunks.size());
  EXPECT_TRUE(stream->Finish().ok());
}

void LoadClient::Forward(const KnownSequence& sequence) {
  const int64_t tokens = dice_.Between(1, sequence.tokens);
  v1::ForwardRequest request;
  request.set_model(sequence.model);
  *request.mutable_x() = StepOf(sequence, "", 0, tokens).x();
  v1::ForwardResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server_.attention().Forward(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectBits("Forward", sequence, 0, tokens, response.output());
}

void LoadClient::GoBack(Session* session) {
  --session->returns;
  grpc::ClientContext context;
  grpc::Status status;
  if (dice_.Chance(0.2)) {
    session->length = 0;
    v1::ResetCacheRequest request;
    request.set_session_id(session->id);
    v1::ResetCacheResponse response;
    status = server_.sessions().ResetCache(&context, request, &response);
  } else {
    session->length = dice_.Between(0, session->length);
    v1::TruncateSessionRequest request;
    request.set_session_id(session->id);
    request.set_length(session->length);
    v1::TruncateSessionResponse response;
    status = server_.sessions().TruncateSession(&context, request, &response);
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

void LoadClient::Delete(const Session& session) {
  v1::DeleteSessionRequest request;
  request.set_session_id(session.id);
  v1::DeleteSessionResponse response;
  grpc::ClientContext context;
  EXPECT_TRUE(server_.sessions().DeleteSession(&context, request, &response).ok());
}

}  // namespace attnserve::testing
