#include "absl/strings/str_format.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/check.h"
#include "tests/bench/core_sequences.h"
#include "tests/bench/rounds.h"

namespace attnserve::bench {
namespace {

Line ShareOfPeak(const Comparison& timing, double operations, std::string benchmark,
                 std::string shape) {
  Line line;
  line.benchmark = std::move(benchmark);
  line.shape = std::move(shape);
  line.figure = operations / timing.figure * 1e-9;
  line.unit = "GFLOP/s";
  line.ceiling = operations / timing.ceiling * 1e-9;
  line.ratio = line.figure / line.ceiling;
  return line;
}

// A layer with its four projections, d = H * head size, as a stateless pass would run it.
void WholeLayer(const Bench& bench, int64_t tokens, int64_t width, int64_t heads) {
  LayerSpec spec;
  spec.input_size = width;
  spec.head_count = heads;
  spec.output_projection = true;
  spec.attention.causal = true;
  Check(CompleteLayerSpec("layer", &spec));
  std::vector<float> matrix = RandomFloats(width * width, 1);
  for (float& value : matrix) value *= 0.03f;
  const WeightView view = {DType::kF32, matrix.data(), width, width, width, 1};
  LayerWeights weights;
  weights.query = weights.key = weights.value = weights.output = view;
  const auto layer = Check(AttentionLayer::Create(spec, weights, GemmBackend::kAuto));

  WorkerPool workers(bench.plan.threads);
  KvBlockPool pool(int64_t{1} << 40);
  KvSequence cache(layer->kv_layout(), &pool);
  Check(cache.Reserve(tokens));
  LayerWorkspace workspace;
  const std::vector<float> x = RandomFloats(tokens * width, 2);
  std::vector<float> y(x.size());
  LayerPass pass;
  pass.cache = &cache;
  pass.x = {DType::kF32, x.data(), tokens, width};
  pass.output = {DType::kF32, y.data(), width, 0};
  const double n = static_cast<double>(tokens), d = static_cast<double>(width);
  const double operations = 8.0 * n * d * d + 4.0 * d * n * (n + 1.0) / 2.0;
  const Comparison timing = TimeAgainstFloor(bench, {0.0, operations}, [&] {
    cache.Truncate(0, tokens);
    cache.Extend(tokens, nullptr);
    Check(layer->AppendKeys({{&pass, 0, tokens}}, workers, workspace));
    Check(layer->Attend({{&pass, 0, tokens}}, workers, workspace));
  });
  bench.table.Add(
      AtLeast(0.85, ShareOfPeak(timing, operations, "prefill, layer",
                                absl::StrFormat("causal T=%d, d=%d, H=%d", tokens, width, heads))));
}

}  // namespace

void Prefill(const Bench& bench) {
  const int64_t tokens = bench.plan.quick ? 256 : 2048;
  for (const int64_t head_size : {64, 128}) {
    CoreShape shape;
    shape.tokens = shape.queries = tokens;
    shape.heads = shape.kv_heads = 16;
    shape.head_size = head_size;
    CoreSequences sequences(shape, bench.plan.threads);
    const Comparison timing =
        TimeAgainstFloor(bench, {0.0, sequences.operations()}, [&] { sequences.Attend(); });
    bench.table.Add(
        AtLeast(head_size == 64 ? 0.80 : 0.88,
                ShareOfPeak(timing, sequences.operations(), "prefill, attention",
                            absl::StrFormat("causal T=%d, H=16, d=%d", tokens, head_size))));
  }
  WholeLayer(bench, tokens, 1024, 16);
}

}  // namespace attnserve::bench
