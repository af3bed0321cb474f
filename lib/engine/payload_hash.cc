#include "lib/engine/payload_hash.h"

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace attnserve {
namespace {

uint64_t TensorHash(const TensorView& tensor) {
  if (!tensor.present()) return 0;
  const absl::string_view bytes(static_cast<const char*>(tensor.data), tensor.bytes());
  return absl::HashOf(static_cast<int>(tensor.dtype), absl::MakeConstSpan(tensor.shape), bytes);
}

}  // namespace

uint64_t PayloadHash(const DecodeCall& call) {
  uint64_t hash = absl::HashOf(call.layer.value_or(-1), static_cast<int>(call.dtype));
  for (const TensorView* tensor : {&call.x, &call.q, &call.k, &call.v, &call.context,
                                   &call.attention_mask, &call.tree_mask, &call.positions}) {
    hash = absl::HashOf(hash, TensorHash(*tensor));
  }
  for (const Stage stage : call.stages) hash = absl::HashOf(hash, static_cast<int>(stage));
  return hash;
}

}  // namespace attnserve
