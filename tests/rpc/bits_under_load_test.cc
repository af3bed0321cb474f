// A token's output has the same bits whatever route it takes and whatever else the server does.
//
// ATTNSERVE_RANDOM_SEED sets the first seed. A failure prints its seed; which steps meet on the
// server is up to the machine.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "lib/gemm/packed_matrix.h"
#include "tests/rpc/load_client.h"
#include "tests/rpc/test_server.h"

namespace attnserve::testing {
namespace {

struct TestModel {
  const char* name;
  int64_t width;
  const char* config;
};
constexpr TestModel kModels[] = {
    {"grouped", 64, R"(
       layers {
         kind: LAYER_KIND_SELF_ATTENTION input_size: 64 head_count: 4 kv_head_count: 2
         output_projection: true
         attention { causal: true rotary { pairing: PAIRING_HALF_SPLIT } }
       }
       seed: 1)"},
    {"window", 96, R"(
       layers {
         kind: LAYER_KIND_SELF_ATTENTION input_size: 96 head_count: 6 kv_head_count: 3
         output_projection: true
         attention {
           causal: true window { left: 150 } sink_token_count: 4
           rotary { pairing: PAIRING_INTERLEAVED }
         }
       }
       seed: 2)"},
    {"odd", 50, R"(
       layers {
         kind: LAYER_KIND_SELF_ATTENTION input_size: 50 head_count: 5 kv_head_count: 1
         query_bias: true key_bias: true value_bias: true
         output_projection: true output_bias: true
         attention {
           causal: true softcap: 4 sink_logits: [0.5, -1, 0, 2, 1] alibi {}
         }
       }
       seed: 3)"},
};
constexpr v1::DType kCacheTypes[] = {v1::DTYPE_F32, v1::DTYPE_F16, v1::DTYPE_BF16, v1::DTYPE_I8};
// The longest goes beyond a stretch of 1,024 keys.
constexpr int64_t kLengths[] = {1100, 330, 129, 40};

struct Load {
  int threads;
  GemmBackend gemm;
  int64_t slice_rows;
  std::chrono::milliseconds step_wait;
};

uint64_t FirstSeed() {
  const char* const text = std::getenv("ATTNSERVE_RANDOM_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

class BitsUnderLoad : public ::testing::TestWithParam<Load> {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder();
    sources_ = new std::vector<ModelSource>();
    for (const TestModel& model : kModels) {
      const std::string path = folder_->path() + "/" + model.name;
      std::filesystem::create_directory(path);
      std::ofstream(path + "/model.textproto") << model.config;
      sources_->push_back({model.name, path});
    }
    sequences_ = new std::vector<KnownSequence>();
    TestServer alone([](ServerOptions* options) {
      options->models = *sources_;
      options->threads = 1;
    });
    for (const int64_t tokens : kLengths) {
      for (const v1::DType cache_dtype : kCacheTypes) {
        for (const TestModel& model : kModels) AddSequence(alone, model, cache_dtype, tokens);
      }
    }
  }
  static void TearDownTestSuite() {
    delete sequences_;
    delete sources_;
    delete folder_;
  }

  // What the outputs are: token by token, with nothing beside it.
  static void AddSequence(TestServer& server, const TestModel& model, v1::DType cache_dtype,
                          int64_t tokens) {
    KnownSequence& sequence = sequences_->emplace_back();
    sequence.model = model.name;
    sequence.cache_dtype = cache_dtype;
    sequence.width = model.width;
    sequence.tokens = tokens;
    sequence.inputs =
        Floats(RandomTensor({tokens, model.width}, static_cast<uint32_t>(sequences_->size())));
    const std::string id = CreateSession(server, sequence);
    for (int64_t t = 0; t < tokens; ++t) {
      const auto output = Floats(Decode(server, StepOf(sequence, id, t, t + 1)).output());
      sequence.outputs.insert(sequence.outputs.end(), output.begin(), output.end());
    }
  }

  // Sessions `first` to `first + count` at the same time; neighbours differ in model and cache.
  static void RunSessions(TestServer& server, size_t first, size_t count, uint64_t seed) {
    const size_t client_count = std::min<size_t>(count, 8);
    std::vector<std::vector<const KnownSequence*>> shares(client_count);
    for (size_t i = 0; i < count; ++i) {
      const KnownSequence& sequence = (*sequences_)[(first + i) % sequences_->size()];
      shares[i % client_count].push_back(&sequence);
    }
    std::vector<std::thread> clients;
    for (const auto& share : shares) {
      clients.emplace_back([&server, &share, count, seed] {
        SCOPED_TRACE(std::to_string(count) + " sessions, seed " + std::to_string(seed));
        LoadClient(&server, share, seed).Run();
      });
      ++seed;
    }
    for (std::thread& client : clients) client.join();
  }

  static TemporaryFolder* folder_;
  static std::vector<ModelSource>* sources_;
  static std::vector<KnownSequence>* sequences_;
};

TemporaryFolder* BitsUnderLoad::folder_ = nullptr;
std::vector<ModelSource>* BitsUnderLoad::sources_ = nullptr;
std::vector<KnownSequence>* BitsUnderLoad::sequences_ = nullptr;

TEST_P(BitsUnderLoad, AreThoseOfTheSequenceAlone) {
  const Load& load = GetParam();
  TestServer server([&load](ServerOptions* options) {
    options->models = *sources_;
    options->threads = load.threads;
    // Where oneDNN adds in another order, only the panel kernel promises the same bits.
    options->gemm = OneDnnMatchesPanels() ? load.gemm : GemmBackend::kNative;
    options->slice_rows = load.slice_rows;
    options->step_wait = load.step_wait;
  });
  uint64_t seed = FirstSeed();
  for (const size_t together : {1, 8, 64}) {
    for (size_t first = 0; first < sequences_->size(); first += together) {
      RunSessions(server, first, together, seed);
      if (HasFailure()) return;
      seed += together;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Threads, BitsUnderLoad,
    ::testing::Values(Load{1, GemmBackend::kNative, 40, {}},
                      Load{2, GemmBackend::kOneDnn, 130, std::chrono::milliseconds(1)},
                      Load{3, GemmBackend::kNative, 17, {}},
                      Load{4, GemmBackend::kOneDnn, 256, std::chrono::milliseconds(4)}),
    [](const auto& info) { return std::to_string(info.param.threads); });

}  // namespace
}  // namespace attnserve::testing
