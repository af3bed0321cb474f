#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/attention/layer_session.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace attnserve {
namespace {

// A batch of sessions, one token each a step.
TEST(AttentionLayer, SteadyDecodeDoesNotAllocate) {
  LayerSpec rotary = SelfSpec(64, 4, 2);
  rotary.attention.position = RotaryPosition();
  LayerSpec window = CoreSpec(4, 2, 16, 16);
  window.attention.causal = true;
  window.attention.window.left = 9;
  for (const LayerSpec& spec : {rotary, window}) {
    const auto layer = MakeLayer(spec);
    ASSERT_NE(layer, nullptr);
    KvBlockPool pool(int64_t{1} << 28);
    LayerWorkspace workspace;
    InlineRunner runner;
    std::vector<std::unique_ptr<LayerSession>> sessions;
    for (int64_t i = 0; i < 5; ++i) {
      sessions.push_back(std::make_unique<LayerSession>(*layer, &pool, 300, i));
      ASSERT_TRUE(sessions.back()->cache().Reserve(300).ok());
    }
    std::vector<PassRows> keys(5), queries(5);
    for (int64_t t = 0; t < 300; ++t) {
      const int64_t before = allocations;
      for (size_t i = 0; i < 5; ++i) {
        sessions[i]->Begin(t, t + 1);
        keys[i] = sessions[i]->KeyRows();
        queries[i] = sessions[i]->QueryRows();
      }
      ASSERT_TRUE(layer->AppendKeys(keys, runner, workspace).ok());
      ASSERT_TRUE(layer->Attend(queries, runner, workspace).ok());
      if (t > 0) {
        ASSERT_EQ(allocations, before) << "token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace attnserve
