#include "lib/model/model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "lib/model/json_text.h"

namespace attnserve {

Model::Model(std::string name, std::string format,
             std::vector<std::unique_ptr<AttentionLayer>> layers, int64_t max_tokens,
             DType weight_dtype)
    : name_(std::move(name)),
      format_(std::move(format)),
      layers_(std::move(layers)),
      max_tokens_(max_tokens),
      weight_dtype_(weight_dtype) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    weight_bytes_ += layers_[i]->weight_bytes();
    if (i > 0 && layers_[i - 1]->spec().output_size != layers_[i]->spec().input_size) {
      chains_ = false;
    }
  }
}

absl::Status CheckModelName(std::string_view name) {
  constexpr size_t kMaxNameLength = 64;
  const bool fine = !name.empty() && name.size() <= kMaxNameLength &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
                    });
  if (fine) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model name ", Quoted(name), " is not 1 to ", kMaxNameLength,
                   " of the characters A-Z, a-z, 0-9, '.', '_' and '-'"));
}

}  // namespace attnserve
