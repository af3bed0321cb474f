// The reference against what others computed: the ONNX Attention operator's backend cases and the
// attention layers of a trained model.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/attention/reference.h"
#include "tests/unit/attention/error_bound.h"
#include "tests/unit/attention/tensor_file.h"
#include "tests/unit/attention/trained_layer.h"

namespace attnserve::reference {
namespace {

namespace fs = std::filesystem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An ONNX input as [B, heads, tokens, size].
struct Heads {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t tokens = 0;
  int64_t size = 0;
  bool token_major = false;  // [B, tokens, heads * size]
  Values values;

  double at(int64_t b, int64_t h, int64_t t, int64_t i) const {
    const int64_t row = token_major ? (b * tokens + t) * heads + h : (b * heads + h) * tokens + t;
    return values[static_cast<size_t>(row * size + i)];
  }

  // [tokens, heads, size] of one sequence.
  Values TokenMajor(int64_t b) const {
    Values result;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < size; ++i) result.push_back(at(b, h, t, i));
      }
    }
    return result;
  }
};

class OnnxCase {
 public:
  explicit OnnxCase(TensorFile file) : file_(std::move(file)) {
    query_ = Load("Q", "q_num_heads");
    key_ = Load("K", "kv_num_heads");
    value_ = Load("V", "kv_num_heads");
    expected_ = Load("Y", "q_num_heads");
    if (file_.Has("past_key")) {
      past_key_ = Load("past_key", "");
      past_value_ = Load("past_value", "");
    }
  }

  int64_t batch() const { return query_.batch; }
  bool half() const { return file_.tensors.at("Y").dtype == DType::kF16; }
  int64_t keys() const { return past_key_.tokens + key_.tokens; }

  LayerSpec Spec() const {
    LayerSpec spec;
    spec.kind = LayerKind::kCoreAttention;
    spec.head_count = query_.heads;
    spec.kv_head_count = key_.heads;
    spec.key_head_size = query_.size;
    spec.value_head_size = value_.size;
    spec.output_size = query_.heads * value_.size;
    spec.attention.causal = Attribute("is_causal") == "1";
    if (const std::string scale = Attribute("scale"); !scale.empty()) {
      spec.attention.scale = std::stof(scale);
    }
    if (const std::string cap = Attribute("softcap"); !cap.empty()) {
      spec.attention.softcap = std::stof(cap);
    }
    return spec;
  }

  Input Sequence(int64_t b) const {
    Input input;
    input.query_count = query_.tokens;
    input.query = query_.TokenMajor(b);
    input.key = key_.TokenMajor(b);
    input.value = value_.TokenMajor(b);
    input.past_key = past_key_.TokenMajor(b);
    input.past_value = past_value_.TokenMajor(b);
    input.causal_offset = past_key_.tokens;
    if (file_.Has("nonpad_kv_seqlen")) {
      const double length = file_.tensors.at("nonpad_kv_seqlen").values[static_cast<size_t>(b)];
      input.valid_keys = static_cast<int64_t>(length);
      input.causal_offset = input.valid_keys - query_.tokens;
    }
    if (file_.Has("attn_mask")) AddMask(b, &input);
    return input;
  }

  // Compares everything the case has to say about sequence b.
  void ExpectEqual(int64_t b, const Output& out) const {
    const size_t outputs = out.output.size();
    ExpectNear("Y", expected_.TokenMajor(b), out.output);
    ASSERT_EQ(outputs, static_cast<size_t>(query_.tokens * query_.heads * value_.size));
    if (file_.Has("present_key")) {
      ExpectNear("present_key", Load("present_key", "").TokenMajor(b), out.present_key);
      ExpectNear("present_value", Load("present_value", "").TokenMajor(b), out.present_value);
    }
    if (!file_.Has("qk_matmul_output")) return;
    const std::string mode = Attribute("qk_matmul_output_mode");
    const Values& stage = mode == "3"   ? out.weights
                          : mode == "2" ? out.masked
                          : mode == "1" ? out.softcapped
                                        : out.scores;
    const Values& all = file_.tensors.at("qk_matmul_output").values;
    const auto begin = all.begin() + b * static_cast<int64_t>(stage.size());
    ExpectNear("qk_matmul_output", Values(begin, begin + static_cast<int64_t>(stage.size())),
               stage);
  }

 private:
  std::string Attribute(const std::string& name) const {
    const auto found = file_.metadata.find("attr." + name);
    return found == file_.metadata.end() ? "" : found->second;
  }

  Heads Load(const std::string& name, const std::string& heads_attribute) const {
    const FileTensor& tensor = file_.tensors.at(name);
    const std::vector<int64_t>& shape = tensor.shape;
    if (shape.size() == 4) return {shape[0], shape[1], shape[2], shape[3], false, tensor.values};
    const int64_t heads = std::stoll(Attribute(heads_attribute));
    return {shape[0], heads, shape[1], shape[2] / heads, true, tensor.values};
  }

  // Broadcasts the mask from the right to [H, T, S]; keys beyond its last axis are masked.
  void AddMask(int64_t b, Input* input) const {
    const FileTensor& mask = file_.tensors.at("attn_mask");
    std::vector<int64_t> shape(4 - mask.shape.size(), 1);
    shape.insert(shape.end(), mask.shape.begin(), mask.shape.end());
    const bool boolean = mask.dtype == DType::kBool;
    const double lowest = static_cast<double>(LowestFinite(mask.dtype));
    for (int64_t h = 0; h < query_.heads; ++h) {
      for (int64_t t = 0; t < query_.tokens; ++t) {
        for (int64_t s = 0; s < keys(); ++s) {
          const int64_t place[4] = {b, h, t, s};
          int64_t index = 0;
          for (size_t axis = 0; axis < 4; ++axis) {
            index = index * shape[axis] + (shape[axis] == 1 ? 0 : place[axis]);
          }
          const bool beyond = shape[3] != 1 && s >= shape[3];
          const double value =
              beyond ? (boolean ? 0.0 : -kInfinity) : mask.values[static_cast<size_t>(index)];
          if (boolean) {
            input->bool_mask.push_back(value != 0.0);
          } else {
            input->additive_mask.push_back(value <= lowest ? -kInfinity : value);
          }
        }
      }
    }
  }

  // The tolerance of the ONNX backend tests.
  void ExpectNear(const std::string& what, const Values& expected, const Values& actual) const {
    ASSERT_EQ(expected.size(), actual.size()) << what;
    const double relative = half() ? 1e-2 : 1e-3;
    const double absolute = half() ? 1e-2 : 1e-5;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == actual[i]) continue;
      ASSERT_NEAR(expected[i], actual[i], absolute + relative * std::fabs(expected[i]))
          << what << "[" << i << "]";
    }
  }

  TensorFile file_;
  Heads query_, key_, value_, expected_, past_key_, past_value_;
};

TEST(ReferenceConformance, OnnxAttentionCases) {
  const fs::path folder = fs::path(ATTNSERVE_SHARED_DIR) / "conformance" / "onnx_attention";
  if (!fs::is_directory(folder)) GTEST_SKIP() << folder << " is absent";
  int cases = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().filename().string());
    std::optional<TensorFile> file = ReadTensorFile(entry.path().string());
    ASSERT_TRUE(file.has_value());
    const OnnxCase onnx_case(*std::move(file));
    for (int64_t b = 0; b < onnx_case.batch(); ++b) {
      onnx_case.ExpectEqual(b, reference::Run(onnx_case.Spec(), {}, onnx_case.Sequence(b)));
    }
    ++cases;
  }
  EXPECT_EQ(cases, 51);
}

// The file holds float64 results rounded to float, of inputs rounded to float afterwards: the
// inputs' errors of 2^-24 go through the layer, the outputs are rounded once.
TEST(ReferenceConformance, TrainedModelLayers) {
  const std::optional<std::string> folder = TrainedModel::Folder();
  if (!folder.has_value()) GTEST_SKIP() << "../shared/models/stories260k is absent";
  const TrainedModel model(*folder);
  for (int index = 0; index < TrainedModel::kLayers; ++index) {
    SCOPED_TRACE("layer " + std::to_string(index));
    const TrainedLayer layer = model.layer(index);
    const Output out = reference::Run(layer.spec, layer.weights, layer.input);

    Precision exact;
    exact.unit = exact.exp = 0.0;
    exact.input = 0x1p-24;
    const ErrorBounds bounds = BoundErrors(layer.spec, layer.weights, layer.input, out, exact);
    const auto expect_near = [&](const Values& want, const Values& got, const Values& bound) {
      ASSERT_EQ(want.size(), got.size());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(want[i], got[i], bound[i] + 0x1p-24 * std::fabs(want[i])) << i;
      }
    };
    expect_near(layer.expected_weights, out.weights, bounds.weights);
    expect_near(layer.expected_output, out.output, bounds.output);
  }
}

}  // namespace
}  // namespace attnserve::reference
