// Runs the fuzz targets over their corpora and over random mutations of them: without libFuzzer, so
// that every build does. A failure names the input; put it into the corpus when it is fixed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_targets.h"

namespace attnserve {
namespace {

struct Target {
  const char* corpus;
  int (*run)(const uint8_t* data, size_t size);
};

void PrintTo(const Target& target, std::ostream* out) { *out << target.corpus; }

class FuzzReplay : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    const std::filesystem::path folder =
        std::filesystem::path(ATTNSERVE_SOURCE_DIR) / "tests/fuzz/corpus" / GetParam().corpus;
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      std::ifstream file(path, std::ios::binary);
      corpus_.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    ASSERT_FALSE(corpus_.empty());
  }

  void Run(const std::string& input) {
    // A copy of exactly this size, so that AddressSanitizer sees every byte read beyond it.
    const std::vector<uint8_t> bytes(input.begin(), input.end());
    EXPECT_EQ(GetParam().run(bytes.data(), bytes.size()), 0);
  }

  size_t Below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  // One small change: a bit, a byte, a piece removed, doubled or taken from another input, a number
  // replaced by one at the edge of a type.
  void Mutate(std::string* input) {
    static const char* const kNumbers[] = {"0",
                                           "-1",
                                           "1",
                                           "4096",
                                           "4097",
                                           "2147483648",
                                           "9223372036854775807",
                                           "9223372036854775808",
                                           "18446744073709551615",
                                           "1e308",
                                           "-0.0",
                                           "null"};
    const size_t at = Below(input->size());
    const size_t count = std::min(input->size() - at, 1 + Below(16));
    switch (Below(6)) {
      case 0:
        if (!input->empty()) (*input)[at] ^= static_cast<char>(1 << Below(8));
        break;
      case 1:
        input->insert(at, 1, static_cast<char>(Below(256)));
        break;
      case 2:
        input->erase(at, count);
        break;
      case 3:
        input->insert(at, input->substr(at, count));
        break;
      case 4: {
        const std::string& other = corpus_[Below(corpus_.size())];
        input->insert(at, other.substr(Below(other.size()), 1 + Below(64)));
        break;
      }
      default: {
        const size_t begin = input->find_first_of("0123456789", at);
        if (begin == std::string::npos) break;
        const size_t end = std::min(input->find_first_not_of("0123456789", begin), input->size());
        input->replace(begin, end - begin, kNumbers[Below(std::size(kNumbers))]);
      }
    }
  }

  std::vector<std::string> corpus_;
  std::mt19937_64 random_{20240229};
};

TEST_P(FuzzReplay, CorpusKeepsContracts) {
  for (const std::string& input : corpus_) Run(input);
}

TEST_P(FuzzReplay, EveryTruncationOfTheCorpusKeepsContracts) {
  for (const std::string& input : corpus_) {
    const size_t step = std::max<size_t>(input.size() / 500, 1);
    for (size_t size = 0; size < input.size(); size += step) Run(input.substr(0, size));
  }
}

TEST_P(FuzzReplay, MutationsKeepContracts) {
  constexpr int kMutants = 20000;
  for (int i = 0; i < kMutants; ++i) {
    std::string input = corpus_[Below(corpus_.size())];
    for (size_t changes = 1 + Below(4); changes > 0; --changes) Mutate(&input);
    Run(input);
  }
}

INSTANTIATE_TEST_SUITE_P(Parsers, FuzzReplay,
                         testing::Values(Target{"safetensors", FuzzSafetensors},
                                         Target{"hugging_face_config", FuzzHuggingFaceConfig},
                                         Target{"model_config", FuzzModelConfig}));

}  // namespace
}  // namespace attnserve
