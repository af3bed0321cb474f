// Takes sessions through sequences whose outputs are known, by every route there is.
#ifndef ATTNSERVE_TESTS_RPC_LOAD_CLIENT_H_
#define ATTNSERVE_TESTS_RPC_LOAD_CLIENT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/rpc/test_server.h"
#include "tests/unit/attention/random_layer.h"

namespace attnserve::testing {

// A sequence through a causal model, and the bits its outputs must have.
struct KnownSequence {
  std::string model;
  v1::DType cache_dtype = v1::DTYPE_F32;
  int64_t width = 0;  // of inputs and outputs
  int64_t tokens = 0;
  std::vector<float> inputs;   // [tokens, width]
  std::vector<float> outputs;  // [tokens, width]
};

// A new session for `sequence`; returns its id.
std::string CreateSession(TestServer& server, const KnownSequence& sequence);
// The step of tokens [begin, end) of `sequence`.
v1::DecodeRequest StepOf(const KnownSequence& sequence, const std::string& session_id,
                         int64_t begin, int64_t end);

// One client with a session for each of its sequences. It draws what comes next: a call of Decode,
// a message of DecodeBatch or a stream with steps of several sessions, all in chunks of any size;
// going back by TruncateSession or ResetCache; Forward over a prefix where the cache does not
// round. Used by one thread; many clients may share a server.
class LoadClient {
 public:
  LoadClient(TestServer* server, const std::vector<const KnownSequence*>& sequences, uint64_t seed);

  // Brings every session to the end of its sequence and deletes it. Every output is compared; the
  // first difference is a failed test and the end.
  void Run();

 private:
  struct Session {
    const KnownSequence* sequence;
    std::string id;
    int64_t length = 0;   // tokens sent
    int64_t returns = 2;  // how often it may still go back
    bool finished() const { return length == sequence->tokens; }
  };
  struct Chunk {
    const Session* session;
    int64_t begin, end;
    v1::DecodeRequest Step() const { return StepOf(*session->sequence, session->id, begin, end); }
  };

  void Act();
  Session* PickUnfinished();
  int64_t DrawChunkSize();
  Chunk NextChunk(Session* session);
  std::vector<Chunk> NextChunks();
  void Decode(const Chunk& chunk);
  void DecodeBatch(const std::vector<Chunk>& chunks);
  void StreamDecode(const std::vector<Chunk>& chunks);
  void Forward(const KnownSequence& sequence);
  void GoBack(Session* session);
  void Delete(const Session& session);

  TestServer& server_;
  Dice dice_;
  std::vector<Session> sessions_;
};

}  // namespace attnserve::testing

#endif  // ATTNSERVE_TESTS_RPC_LOAD_CLIENT_H_
