// Layers and inputs that tests of the layer, of its reference and of the semantics start from.
#ifndef ATTNSERVE_TESTS_UNIT_ATTENTION_SIMPLE_LAYERS_H_
#define ATTNSERVE_TESTS_UNIT_ATTENTION_SIMPLE_LAYERS_H_

#include <cstddef>
#include <cstdint>

#include "lib/attention/layer_spec.h"
#include "lib/attention/reference.h"

namespace attnserve {

inline LayerSpec CoreSpec(int64_t heads, int64_t kv_heads, int64_t key_size, int64_t value_size) {
  LayerSpec spec;
  spec.kind = LayerKind::kCoreAttention;
  spec.head_count = heads;
  spec.kv_head_count = kv_heads;
  spec.key_head_size = key_size;
  spec.value_head_size = value_size;
  spec.output_size = heads * value_size;
  return spec;
}

// `queries` queries over as many values of size 1 as given; all scores are 0.
inline reference::Input EqualScores(int64_t queries, const reference::Values& values) {
  reference::Input input;
  input.query_count = queries;
  input.query.assign(static_cast<size_t>(queries), 0.0);
  input.key.assign(values.size(), 1.0);
  input.value = values;
  return input;
}

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_ATTENTION_SIMPLE_LAYERS_H_
