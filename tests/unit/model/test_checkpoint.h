// Small checkpoints with random weights, in the layouts of Hugging Face transformers.
#ifndef ATTNSERVE_TESTS_UNIT_MODEL_TEST_CHECKPOINT_H_
#define ATTNSERVE_TESTS_UNIT_MODEL_TEST_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/base/tensor.h"
#include "nlohmann/json.hpp"

namespace attnserve {

// Tensors by name. All have one float type and normally distributed values that are exact in it.
class TestCheckpoint {
 public:
  explicit TestCheckpoint(DType dtype = DType::kF32) : dtype_(dtype) {}

  DType dtype() const { return dtype_; }
  void Add(const std::string& name, const Shape& shape);
  void Remove(const std::string& name) { tensors_.erase(name); }
  bool Has(const std::string& name) const { return tensors_.count(name) != 0; }
  // Elements of a tensor, row-major; empty if there is none.
  std::vector<float> Values(const std::string& name) const;
  std::vector<std::string> Names() const;  // sorted

  // Writes one file.
  void Write(const std::string& path) const;
  // Writes `shards` files model-0000i-of-0000n.safetensors and model.safetensors.index.json.
  void WriteSharded(const std::string& folder, int shards) const;

 private:
  struct Tensor {
    Shape shape;
    std::vector<uint8_t> bytes;
  };
  TensorView View(const Tensor& tensor) const;

  DType dtype_;
  std::map<std::string, Tensor> tensors_;
};

// A model in miniature. Widths are odd where they may be.
struct TestSizes {
  int64_t layers = 2;
  int64_t hidden = 15;
  int64_t heads = 6;
  int64_t kv_heads = 2;
  int64_t head_size = 4;
};

// config.json and tensors, model_type llama, mistral, qwen2 or qwen3, attention_bias false.
nlohmann::json LlamaConfig(const std::string& model_type, const TestSizes& sizes);
TestCheckpoint LlamaCheckpoint(const std::string& model_type, const TestSizes& sizes,
                               const std::string& prefix = "model.", DType dtype = DType::kF32);

// GPT-2 and BERT, where hidden = heads * head_size.
inline constexpr TestSizes kPlainSizes = {2, 15, 5, 5, 3};
nlohmann::json Gpt2Config(const TestSizes& sizes);
TestCheckpoint Gpt2Checkpoint(const TestSizes& sizes, const std::string& prefix = "transformer.");
nlohmann::json BertConfig(const TestSizes& sizes);
TestCheckpoint BertCheckpoint(const TestSizes& sizes, const std::string& prefix = "bert.");

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_MODEL_TEST_CHECKPOINT_H_
