// Text to tokens and back, for models that come with a vocab.json.
#ifndef ATTNSERVE_CLIENT_ATTNCTL_TOKENIZER_H_
#define ATTNSERVE_CLIENT_ATTNCTL_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"

namespace attnserve::ctl {

// Byte-pair encoding by scores, as llama2.c does it: a space before the text, one token a character
// (or, for characters not in the vocabulary, a byte), then repeatedly the neighbours whose
// concatenation has the best score become one. Immutable.
class Tokenizer {
 public:
  static constexpr int kBos = 1;
  static constexpr int kEos = 2;
  static constexpr int kFirstByte = 3;  // token of byte 0

  // vocab.json: {"pieces": [[text, score], ...]} in order of ids, at least kFirstByte + 256.
  static absl::StatusOr<Tokenizer> Load(const std::string& path);

  int size() const { return static_cast<int>(pieces_.size()); }

  // Tokens of `text`, without kBos.
  std::vector<int> Encode(std::string_view text) const;

  // Text of `token` behind `previous`: a leading space after kBos is dropped.
  std::string Decode(int previous, int token) const;

 private:
  struct Piece {
    std::string text;
    float score;
  };
  int Find(const std::string& text) const;  // -1: not in the vocabulary

  std::vector<Piece> pieces_;
  std::unordered_map<std::string, int> ids_;
};

}  // namespace attnserve::ctl

#endif  // ATTNSERVE_CLIENT_ATTNCTL_TOKENIZER_H_
