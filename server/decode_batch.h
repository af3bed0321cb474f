// AttentionService.DecodeBatch.
#ifndef ATTNSERVE_SERVER_DECODE_BATCH_H_
#define ATTNSERVE_SERVER_DECODE_BATCH_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "attnserve/v1/attention_service.pb.h"
#include "server/decode_step.h"
#include "server/reactors.h"

namespace attnserve {

// Submits all steps and finishes when the last has ended. Steps of one session share a StepChain.
class DecodeBatchReactor final : public EngineReactor {
 public:
  DecodeBatchReactor(const Backend& backend, attnserve::v1::DecodeBatchResponse* response);
  ~DecodeBatchReactor() override;

  void Start(const grpc::CallbackServerContext& context,
             const attnserve::v1::DecodeBatchRequest& request);

 private:
  class Step;

  void OnCancel() override;
  void StepEnded();

  attnserve::v1::DecodeBatchResponse* response_;
  std::unordered_map<std::string_view, StepChain> chains_;  // by session id
  std::vector<std::unique_ptr<Step>> steps_;
  int64_t reply_budget_bytes_ = 0;  // the engine's while steps run
  // Steps that have not ended, and 1 until all have been submitted.
  std::atomic<int> remaining_{1};
  // OnCancel may come while Start still makes the steps.
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> steps_made_{false};
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_DECODE_BATCH_H_
