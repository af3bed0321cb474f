// Random layers behind a real engine: sessions that decode in random chunks, are truncated, reset,
// deleted and created again, several at a time, against the float64 reference; nothing is left in
// the pool at the end.
//
// ATTNSERVE_RANDOM_SESSIONS sets how many layers, ATTNSERVE_RANDOM_SEED the first seed. A failure
// prints its seed.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "gtest/gtest.h"
#include "lib/attention/reference.h"
#include "tests/unit/attention/error_bound.h"
#include "tests/unit/attention/random_layer.h"
#include "tests/unit/engine/engine_harness.h"

namespace attnserve {
namespace {

using reference::Values;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kDefaultLayers = 20;
#else
constexpr int64_t kDefaultLayers = 150;
#endif
constexpr int kSessions = 3;
constexpr int kOperations = 15;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::strtoll(value, nullptr, 10) : otherwise;
}

Floats ToFloats(const Values& values) { return {values.begin(), values.end()}; }

// Numbers that are exact in F32.
Values Draw(Dice& dice, int64_t count) {
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = static_cast<float>(dice.Normal());
  return values;
}

void Append(const Values& more, Values* values) {
  values->insert(values->end(), more.begin(), more.end());
}

// What one session should hold.
struct Expected {
  std::string id;
  int64_t tokens = 0;
  reference::Input input;  // all tokens so far, as one sequence
};

class RandomSessions {
 public:
  explicit RandomSessions(uint64_t seed) : dice_(seed), layer_(MakeRandomLayer(dice_)) {
    options_.kv_budget_bytes = int64_t{256} << 20;
    options_.worker_count = static_cast<int>(dice_.Between(1, 3));
    options_.limits.slice_rows = dice_.Pick<int64_t>({16, 64, 256});
    options_.limits.step_wait = std::chrono::microseconds(dice_.Pick<int64_t>({0, 100, 4000}));
    engine_ = std::make_unique<Engine>(options_);
  }

  void Run() {
    ASSERT_TRUE(CompleteLayerSpec("layer", &layer_.spec).ok());
    if (layer_.spec.kind != LayerKind::kCoreAttention) MakeModel();
    std::vector<Expected> sessions(kSessions);
    for (Expected& session : sessions) ASSERT_NO_FATAL_FAILURE(Create(&session));
    for (int i = 0; i < kOperations; ++i) {
      Expected& session = sessions[static_cast<size_t>(dice_.Between(0, kSessions - 1))];
      ASSERT_NO_FATAL_FAILURE(Operate(&session));
    }
    for (Expected& session : sessions) {
      ASSERT_TRUE(Control(*engine_, SessionCall::Kind::kDelete, session.id).ok());
    }
    EXPECT_EQ(engine_->stats().kv_charged_bytes, 0);
    EXPECT_EQ(engine_->stats().kv_block_bytes, 0);
  }

 private:
  bool core() const { return layer_.spec.kind == LayerKind::kCoreAttention; }
  bool cross() const { return layer_.spec.kind == LayerKind::kCrossAttention; }

  WeightView View(const Values& values, int64_t in, int64_t out) {
    kept_.push_back(std::make_unique<Floats>(values.begin(), values.end()));
    return {DType::kF32, kept_.back()->data(), in, out, out, 1};
  }

  void MakeModel() {
    const LayerSpec& spec = layer_.spec;
    const int64_t kv_in = cross() ? spec.context_size : spec.input_size;
    LayerWeights weights;
    weights.query = View(layer_.weights.query, spec.input_size, spec.query_width());
    weights.key = View(layer_.weights.key, kv_in, spec.key_width());
    weights.value = View(layer_.weights.value, kv_in, spec.value_width());
    if (spec.output_projection) {
      weights.output = View(layer_.weights.output, spec.context_width(), spec.output_size);
    }
    weights.query_bias = ToFloats(layer_.weights.query_bias);
    weights.key_bias = ToFloats(layer_.weights.key_bias);
    weights.value_bias = ToFloats(layer_.weights.value_bias);
    weights.output_bias = ToFloats(layer_.weights.output_bias);
    auto made = AttentionLayer::Create(spec, weights, layer_.backend);
    ASSERT_TRUE(made.ok()) << made.status();
    std::vector<std::unique_ptr<AttentionLayer>> layers;
    layers.push_back(*std::move(made));
    model_ =
        std::make_shared<Model>("random", "model.textproto", std::move(layers), 0, DType::kF32);
  }

  void Create(Expected* session) {
    CreateSessionOptions options;
    options.model = model_;
    if (core()) options.core_layers = {layer_.spec};
    auto created = engine_->CreateSession(options);
    ASSERT_TRUE(created.ok()) << created.status();
    *session = {};
    session->id = created->info.id;
  }

  void Operate(Expected* session) {
    const int64_t kind = dice_.Between(0, 9);
    if (kind <= 6) return Decode(session);
    if (kind == 7) return Truncate(session);
    if (kind == 8) {
      ASSERT_TRUE(Control(*engine_, SessionCall::Kind::kReset, session->id).ok());
      const std::string id = session->id;
      *session = {};
      session->id = id;
      return;
    }
    ASSERT_TRUE(Control(*engine_, SessionCall::Kind::kDelete, session->id).ok());
    Create(session);
  }

  void Truncate(Expected* session) {
    const LayerSpec& spec = layer_.spec;
    session->tokens = dice_.Between(0, session->tokens);
    ASSERT_TRUE(Control(*engine_, SessionCall::Kind::kTruncate, session->id, session->tokens).ok());
    const auto keep = [session](int64_t width, Values* values) {
      values->resize(static_cast<size_t>(session->tokens * width));
    };
    if (core()) {
      keep(spec.query_width(), &session->input.query);
      keep(spec.key_width(), &session->input.key);
      keep(spec.value_width(), &session->input.value);
    } else {
      keep(spec.input_size, &session->input.x);
    }
  }

  // [tokens, heads, size] as the [1, heads, tokens, size] that core Decode takes.
  static Floats HeadMajor(const Values& values, int64_t tokens, int64_t heads, int64_t size) {
    Floats out(values.size());
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < size; ++i) {
          out[static_cast<size_t>((h * tokens + t) * size + i)] =
              static_cast<float>(values[static_cast<size_t>((t * heads + h) * size + i)]);
        }
      }
    }
    return out;
  }

  void Decode(Expected* session) {
    const LayerSpec& spec = layer_.spec;
    const int64_t tokens = dice_.Chance(0.2) ? dice_.Between(17, 80) : dice_.Between(1, 16);
    RecordingSink sink;
    DecodeCall call;
    call.sink = &sink;
    call.session_id = session->id;
    if (dice_.Chance(0.5)) call.expected_position = session->tokens;
    Floats x, q, k, v, context;
    reference::Input& input = session->input;
    if (core()) {
      const Values new_q = Draw(dice_, tokens * spec.query_width());
      const Values new_k = Draw(dice_, tokens * spec.key_width());
      const Values new_v = Draw(dice_, tokens * spec.value_width());
      q = HeadMajor(new_q, tokens, spec.head_count, spec.key_head_size);
      k = HeadMajor(new_k, tokens, spec.kv_head_count, spec.key_head_size);
      v = HeadMajor(new_v, tokens, spec.kv_head_count, spec.value_head_size);
      call.q = {DType::kF32, {1, spec.head_count, tokens, spec.key_head_size}, q.data()};
      call.k = {DType::kF32, {1, spec.kv_head_count, tokens, spec.key_head_size}, k.data()};
      call.v = {DType::kF32, {1, spec.kv_head_count, tokens, spec.value_head_size}, v.data()};
      Append(new_q, &input.query);
      Append(new_k, &input.key);
      Append(new_v, &input.value);
    } else {
      const Values new_x = Draw(dice_, tokens * spec.input_size);
      x = ToFloats(new_x);
      call.x = {DType::kF32, {1, tokens, spec.input_size}, x.data()};
      Append(new_x, &input.x);
    }
    if (cross() && input.context.empty()) {
      const int64_t rows = dice_.Between(1, 70);
      input.context = Draw(dice_, rows * spec.context_size);
      context = ToFloats(input.context);
      call.context = {DType::kF32, {1, rows, spec.context_size}, context.data()};
    }
    call.may_run_in_submit = dice_.Between(0, 1) == 1;
    engine_->Submit(&call);
    const absl::Status status = sink.Wait();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(call.position, session->tokens);
    session->tokens += tokens;
    ASSERT_EQ(call.length, session->tokens);
    Compare(*session, tokens, sink);
  }

  // The last `tokens` rows of the whole sequence, computed by the reference, against the reply.
  void Compare(const Expected& session, int64_t tokens, const RecordingSink& sink) {
    LayerSpec exact = layer_.spec;
    exact.cache_dtype = DType::kF32;  // the bound covers the cache's rounding
    reference::Input input = session.input;
    input.query_count = session.tokens;
    const reference::Output expected = reference::Run(exact, layer_.weights, input);
    Precision precision;
    precision.cached = CachedPrecision(layer_.spec.cache_dtype);
    const ErrorBounds bounds = BoundErrors(layer_.spec, layer_.weights, input, expected, precision);
    const Floats actual(reinterpret_cast<const float*>(sink.output.data()),
                        reinterpret_cast<const float*>(sink.output.data() + sink.output.size()));
    const int64_t width = static_cast<int64_t>(actual.size()) / tokens;
    const int64_t size = layer_.spec.value_head_size;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < width; ++i) {
        const size_t at = static_cast<size_t>((session.tokens - tokens + t) * width + i);
        const int64_t from = core() ? (i / size * tokens + t) * size + i % size : t * width + i;
        const double value = actual[static_cast<size_t>(from)];
        const double allowed =
            bounds.output[at] +
            RoundingError(DType::kF32, std::fabs(expected.output[at]) + bounds.output[at]);
        ASSERT_LE(std::fabs(value - expected.output[at]), allowed)
            << "token " << t << " of " << tokens << ", element " << i << ": " << value
            << ", expected " << expected.output[at];
      }
    }
  }

  Dice dice_;
  RandomLayer layer_;
  EngineOptions options_;
  std::shared_ptr<const Model> model_;
  std::vector<std::unique_ptr<Floats>> kept_;
  std::unique_ptr<Engine> engine_;
};

TEST(RandomSessionsTest, MatchTheReferenceAndLeaveNothingBehind) {
  const int64_t count = FromEnvironment("ATTNSERVE_RANDOM_SESSIONS", kDefaultLayers);
  const uint64_t first = static_cast<uint64_t>(FromEnvironment("ATTNSERVE_RANDOM_SEED", 1));
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(count); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomSessions(seed).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace attnserve
