// One step of a session on its way through the engine.
#ifndef ATTNSERVE_LIB_ENGINE_DECODE_WORK_H_
#define ATTNSERVE_LIB_ENGINE_DECODE_WORK_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "lib/attention/attention_layer.h"
#include "lib/base/aligned_buffer.h"
#include "lib/base/tensor.h"
#include "lib/engine/call.h"
#include "lib/engine/checks.h"
#include "lib/engine/work.h"
#include "lib/session/session.h"

namespace attnserve {

inline bool IsCross(const Session::Layer& layer) {
  return layer.layer->spec().kind == LayerKind::kCrossAttention;
}

inline bool IsCore(const Session::Layer& layer) {
  return layer.layer->spec().kind == LayerKind::kCoreAttention;
}

// Checks that need the tokens held are in decode_turn_checks.cc, what the layers get in
// decode_pass.cc, retries in decode_reply.cc.
class DecodeWork final : public Work {
 public:
  DecodeWork(DecodeCall* call, std::shared_ptr<Session> session, const WorkContext& context);

  absl::Status Begin() override;
  void Commit() override;
  void Abort() override;
  int64_t tokens() const override { return std::max(queries_, new_keys_); }
  bool is_light() override;

 private:
  // What a layer held before the step, to go back to.
  struct Before {
    int64_t length = 0;
    int64_t cache_length = 0;
    bool has_context = false;
  };
  // A tensor of the reply, to keep a copy of. Kinds as in ReplyPart: the output, or 1 + a stage.
  static constexpr int kOutputPart = 0;
  static int StagePart(Stage stage) { return 1 + static_cast<int>(stage); }
  struct Part {
    int kind = kOutputPart;
    int layer = 0;
    DType dtype = DType::kF32;
    Shape shape;
    const void* data = nullptr;
    int64_t bytes = 0;
  };

  void ReadTokenCounts();
  Session::Layer& LayerAt(size_t step) { return session_->layers()[first_layer_ + step]; }
  ReplyCache& replies() {
    return layer_count_ > 1 ? session_->whole_replies() : *LayerAt(0).replies;
  }
  int64_t KeyCount(Session::Layer& layer) {  // S
    return IsCross(layer) ? layer.cache->length() : before_[0].length + new_keys_;
  }
  absl::Status CheckChain();
  absl::Status Replay(const KeptReply& reply);
  absl::Status CheckPosition();
  absl::Status CheckLayer(size_t step);
  absl::Status CheckReplySize();
  absl::Status TakeReplyBudget(int64_t bytes);
  absl::Status Reserve();
  bool KeepReply();
  void Extend();
  void AllocateOutputs(size_t step);
  absl::Status NextWave() override;
  void FillPass(size_t step);
  void FillInput(Session::Layer& layer, size_t step, LayerPass* pass);
  HeadsView Heads(const TensorView& tensor) const;

  DecodeCall* decode_;
  std::shared_ptr<Session> session_;
  uint64_t payload_hash_ = 0;
  size_t first_layer_ = 0;
  size_t layer_count_ = 1;
  int64_t queries_ = 0;   // T
  int64_t new_keys_ = 0;  // N
  size_t step_ = 0;       // next layer to start, from first_layer_
  absl::InlinedVector<Before, 1> before_;
  absl::InlinedVector<BroadcastMask, 1> masks_;
  std::vector<int64_t> positions_;  // [N] or empty
  std::vector<Part> parts_;         // empty without request_id
  AlignedBuffer<float> hidden_[2];
  void* output_ = nullptr;
  absl::InlinedVector<void*, 2> stage_data_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_DECODE_WORK_H_
