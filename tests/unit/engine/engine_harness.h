// Runs calls through a real Engine and waits for their answers.
#ifndef ATTNSERVE_TESTS_UNIT_ENGINE_ENGINE_HARNESS_H_
#define ATTNSERVE_TESTS_UNIT_ENGINE_ENGINE_HARNESS_H_

#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/errors.h"
#include "lib/engine/engine.h"

namespace attnserve {

using Floats = std::vector<float>;

// Keeps what the engine writes.
class RecordingSink final : public CallSink {
 public:
  void* Output(DType dtype, absl::Span<const int64_t> shape) override;
  void* StageOutput(Stage stage, int32_t layer, DType dtype,
                    absl::Span<const int64_t> shape) override;
  void* Present(bool key, DType dtype, absl::Span<const int64_t> shape) override;
  void Done(const absl::Status& status) override {
    thread = std::this_thread::get_id();
    done_.set_value(status);
  }

  absl::Status Wait() { return done_.get_future().get(); }

  Shape output_shape;
  std::string output;
  std::map<std::pair<int, Stage>, std::string> stages;
  std::string present_key, present_value;
  std::thread::id thread;  // that called Done

 private:
  std::promise<absl::Status> done_;
};

// The result of one call.
struct Answer {
  absl::Status status;
  Floats output;
  Shape shape;
  std::map<std::pair<int, Stage>, Floats> stages;
  int64_t position = 0;
  int64_t length = 0;
  bool replayed = false;
  std::thread::id thread;  // that ended it
};

// A step, with what its views point to.
struct DecodeStep {
  std::string session;
  int layer = -1;  // -1: all
  Floats x;        // [1, T, width]
  int64_t tokens = 0;
  int64_t width = 0;
  Floats context;
  int64_t context_rows = 0, context_width = 0;
  int64_t expected_position = -1;  // -1: unset
  std::string request_id;
  std::vector<Stage> stages;
  StepChain* chain = nullptr;
  bool may_run_in_submit = false;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  absl::Status error;
};

// A step that has been submitted; Wait once.
class PendingStep {
 public:
  PendingStep(Engine& engine, DecodeStep step);
  Answer Wait();
  DecodeCall& call() { return call_; }

 private:
  DecodeStep step_;
  RecordingSink sink_;
  DecodeCall call_;
};

Answer Decode(Engine& engine, DecodeStep step);
Answer Forward(Engine& engine, std::shared_ptr<const Model> model, int layer, int64_t batch,
               int64_t tokens, const Floats& x, const std::vector<Stage>& stages = {},
               int64_t context_rows = 0, const Floats& context = {});

// Reset, truncate or delete; `length` for truncation.
absl::Status Control(Engine& engine, SessionCall::Kind kind, const std::string& session,
                     int64_t length = 0, SessionCall* result = nullptr);

// Pseudo-random numbers in [-1, 1).
Floats Noise(int64_t count, uint64_t seed);

// A model of `layers` causal multi-head layers of one size (d = 24, H = 4, G = 2), seeded.
std::shared_ptr<const Model> SmallModel(int layers, int64_t max_tokens = 0,
                                        DType cache_dtype = DType::kF32);
// One cross-attention layer, d = 24, d_ctx = 20.
std::shared_ptr<const Model> CrossModel();

std::string Reason(const absl::Status& status);

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ENGINE_ENGINE_HARNESS_H_
