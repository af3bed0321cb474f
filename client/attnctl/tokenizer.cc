#include "client/attnctl/tokenizer.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace attnserve::ctl {

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  const nlohmann::json parsed = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto bad = [&path](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::string(what)));
  };
  if (!parsed.is_object() || !parsed.contains("pieces") || !parsed["pieces"].is_array()) {
    return bad("is not an object with a list \"pieces\"");
  }
  Tokenizer tokenizer;
  for (const auto& piece : parsed["pieces"]) {
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      return bad(absl::StrCat("piece ", tokenizer.size(), " is not [text, score]"));
    }
    tokenizer.ids_.emplace(piece[0].get<std::string>(), tokenizer.size());
    tokenizer.pieces_.push_back({piece[0].get<std::string>(), piece[1].get<float>()});
  }
  if (tokenizer.size() < kFirstByte + 256) return bad("has fewer pieces than bytes");
  return tokenizer;
}

int Tokenizer::Find(const std::string& text) const {
  const auto it = ids_.find(text);
  return it == ids_.end() ? -1 : it->second;
}

std::vector<int> Tokenizer::Encode(std::string_view text) const {
  std::vector<int> tokens;
  if (text.empty()) return tokens;
  const std::string spaced = absl::StrCat(" ", std::string(text));
  for (size_t at = 0; at < spaced.size();) {
    size_t end = at + 1;  // of one UTF-8 character
    const bool multibyte = (spaced[at] & 0xC0) == 0xC0;
    while (multibyte && end < spaced.size() && (spaced[end] & 0xC0) == 0x80) ++end;
    const int token = Find(spaced.substr(at, end - at));
    for (size_t i = at; token < 0 && i < end; ++i) {
      tokens.push_back(kFirstByte + static_cast<uint8_t>(spaced[i]));
    }
    if (token >= 0) tokens.push_back(token);
    at = end;
  }
  while (true) {
    float best_score = -1e30f;
    int best_token = -1;
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const int merged = Find(pieces_[static_cast<size_t>(tokens[i])].text +
                              pieces_[static_cast<size_t>(tokens[i + 1])].text);
      if (merged >= 0 && pieces_[static_cast<size_t>(merged)].score > best_score) {
        best_score = pieces_[static_cast<size_t>(merged)].score;
        best_token = merged;
        best_at = i;
      }
    }
    if (best_token < 0) return tokens;
    tokens[best_at] = best_token;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

std::string Tokenizer::Decode(int previous, int token) const {
  const bool byte = token >= kFirstByte && token < kFirstByte + 256;
  const std::string text = byte ? std::string(1, static_cast<char>(token - kFirstByte))
                                : pieces_[static_cast<size_t>(token)].text;
  return previous == kBos && !text.empty() && text[0] == ' ' ? text.substr(1) : text;
}

}  // namespace attnserve::ctl
