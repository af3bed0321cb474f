#include "tests/unit/engine/engine_harness.h"

#include <cstring>
#include <random>
#include <utility>

namespace attnserve {
namespace {

size_t Bytes(DType dtype, absl::Span<const int64_t> shape) {
  size_t bytes = ElementSize(dtype);
  for (const int64_t size : shape) bytes *= static_cast<size_t>(size);
  return bytes;
}

Floats AsFloats(const std::string& bytes) {
  Floats values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Answer ToAnswer(absl::Status status, const RecordingSink& sink) {
  Answer answer;
  answer.status = std::move(status);
  answer.output = AsFloats(sink.output);
  answer.shape = sink.output_shape;
  for (const auto& [key, bytes] : sink.stages) answer.stages[key] = AsFloats(bytes);
  return answer;
}

TensorView View(const Floats& values, Shape shape) {
  return {DType::kF32, std::move(shape), values.data()};
}

WeightView RowMajor(const Floats& values, int64_t in, int64_t out) {
  return {DType::kF32, values.data(), in, out, 1, in};
}

std::shared_ptr<const Model> MakeModel(const std::string& name, const LayerSpec& prototype,
                                       int layers, int64_t max_tokens) {
  std::vector<std::unique_ptr<AttentionLayer>> built;
  for (int i = 0; i < layers; ++i) {
    LayerSpec spec = prototype;
    if (!CompleteLayerSpec("layer", &spec).ok()) std::abort();
    const int64_t kv_in =
        spec.kind == LayerKind::kCrossAttention ? spec.context_size : spec.input_size;
    const uint64_t seed = static_cast<uint64_t>(i) * 10;
    const Floats q = Noise(spec.input_size * spec.query_width(), seed + 1);
    const Floats k = Noise(kv_in * spec.key_width(), seed + 2);
    const Floats v = Noise(kv_in * spec.value_width(), seed + 3);
    const Floats o = Noise(spec.context_width() * spec.output_size, seed + 4);
    LayerWeights weights;
    weights.query = RowMajor(q, spec.input_size, spec.query_width());
    weights.key = RowMajor(k, kv_in, spec.key_width());
    weights.value = RowMajor(v, kv_in, spec.value_width());
    weights.output = RowMajor(o, spec.context_width(), spec.output_size);
    auto layer = AttentionLayer::Create(spec, weights, GemmBackend::kOneDnn);
    if (!layer.ok()) std::abort();
    built.push_back(*std::move(layer));
  }
  return std::make_shared<Model>(name, "model.textproto", std::move(built), max_tokens,
                                 DType::kF32);
}

}  // namespace

void* RecordingSink::Output(DType dtype, absl::Span<const int64_t> shape) {
  output_shape.assign(shape.begin(), shape.end());
  output.assign(Bytes(dtype, shape), '\0');
  return output.data();
}

void* RecordingSink::StageOutput(Stage stage, int32_t layer, DType dtype,
                                 absl::Span<const int64_t> shape) {
  std::string& bytes = stages[{layer, stage}];
  bytes.assign(Bytes(dtype, shape), '\0');
  return bytes.data();
}

void* RecordingSink::Present(bool key, DType dtype, absl::Span<const int64_t> shape) {
  std::string& bytes = key ? present_key : present_value;
  bytes.assign(Bytes(dtype, shape), '\0');
  return bytes.data();
}

PendingStep::PendingStep(Engine& engine, DecodeStep step) : step_(std::move(step)) {
  call_.sink = &sink_;
  call_.session_id = step_.session;
  if (step_.layer >= 0) call_.layer = step_.layer;
  call_.x = View(step_.x, {1, step_.tokens, step_.width});
  call_.request_bytes = static_cast<int64_t>(step_.x.size() * sizeof(float));
  if (step_.context_rows > 0) {
    call_.context = View(step_.context, {1, step_.context_rows, step_.context_width});
  }
  if (step_.expected_position >= 0) call_.expected_position = step_.expected_position;
  call_.request_id = step_.request_id;
  call_.stages.assign(step_.stages.begin(), step_.stages.end());
  call_.chain = step_.chain;
  call_.may_run_in_submit = step_.may_run_in_submit;
  call_.deadline = step_.deadline;
  call_.error = step_.error;
  engine.Submit(&call_);
}

Answer PendingStep::Wait() {
  absl::Status status = sink_.Wait();
  Answer answer = ToAnswer(std::move(status), sink_);
  answer.position = call_.position;
  answer.length = call_.length;
  answer.replayed = call_.replayed;
  answer.thread = sink_.thread;
  return answer;
}

Answer Decode(Engine& engine, DecodeStep step) {
  return PendingStep(engine, std::move(step)).Wait();
}

Answer Forward(Engine& engine, std::shared_ptr<const Model> model, int layer, int64_t batch,
               int64_t tokens, const Floats& x, const std::vector<Stage>& stages,
               int64_t context_rows, const Floats& context) {
  RecordingSink sink;
  ForwardCall call;
  call.sink = &sink;
  call.x = View(x, {batch, tokens, model->layer(0).spec().input_size});
  if (context_rows > 0) {
    call.context = View(context, {batch, context_rows, model->layer(0).spec().context_size});
  }
  call.model = std::move(model);
  if (layer >= 0) call.layer = layer;
  call.stages.assign(stages.begin(), stages.end());
  engine.Submit(&call);
  absl::Status status = sink.Wait();
  return ToAnswer(std::move(status), sink);
}

absl::Status Control(Engine& engine, SessionCall::Kind kind, const std::string& session,
                     int64_t length, SessionCall* result) {
  RecordingSink sink;
  SessionCall call;
  call.sink = &sink;
  call.kind = kind;
  call.session_id = session;
  call.length = length;
  engine.Submit(&call);
  absl::Status status = sink.Wait();
  if (result != nullptr) {
    result->info = call.info;
    result->existed = call.existed;
  }
  return status;
}

Floats Noise(int64_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(static_cast<int64_t>(generator() >> 40) - (1 << 23)) * 0x1p-23f;
  }
  return values;
}

std::shared_ptr<const Model> SmallModel(int layers, int64_t max_tokens, DType cache_dtype) {
  LayerSpec spec;
  spec.input_size = 24;
  spec.head_count = 4;
  spec.kv_head_count = 2;
  spec.output_projection = true;
  spec.attention.causal = true;
  spec.attention.position = RotaryPosition{};
  spec.cache_dtype = cache_dtype;
  return MakeModel("small", spec, layers, max_tokens);
}

std::shared_ptr<const Model> CrossModel() {
  LayerSpec spec;
  spec.kind = LayerKind::kCrossAttention;
  spec.input_size = 24;
  spec.context_size = 20;
  spec.head_count = 4;
  spec.output_projection = true;
  return MakeModel("cross", spec, 1, 0);
}

std::string Reason(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return detail.has_value() ? detail->reason : std::string(absl::StatusCodeToString(status.code()));
}

}  // namespace attnserve
