#include "server/decode_batch.h"

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "server/limits.h"
#include "server/status.h"

namespace attnserve {
namespace {

constexpr size_t kResultFrameBytes = 32;  // tags and lengths around a status

}  // namespace

class DecodeBatchReactor::Step final : public DecodeStep {
 public:
  Step(DecodeBatchReactor* batch, int index, v1::DecodeResult* result)
      : batch_(*batch), index_(index), result_(result) {}

  v1::DecodeResult* result() { return result_; }

 private:
  void Ended(const absl::Status& status) override {
    FillResult(status, absl::StrCat("steps[", index_, "]."), result_);
    if (!status.ok()) Shorten(kStepOverheadBytes - kResultFrameBytes, result_->mutable_status());
    LogDefect(Rpc::kDecodeBatch, status);
    batch_.StepEnded();
  }

  DecodeBatchReactor& batch_;
  const int index_;
  v1::DecodeResult* const result_;
};

DecodeBatchReactor::DecodeBatchReactor(const Backend& backend, v1::DecodeBatchResponse* response)
    : EngineReactor(Rpc::kDecodeBatch, backend), response_(response) {}

DecodeBatchReactor::~DecodeBatchReactor() = default;

void DecodeBatchReactor::Start(const grpc::CallbackServerContext& context,
                               const v1::DecodeBatchRequest& request) {
  if (const absl::Status status = backend().CheckOpen(); !status.ok()) return Refuse(status);
  const int count = request.steps_size();
  const EngineLimits& limits = backend().engine().options().limits;
  if (const int most = MaxBatchSteps(limits); count > most) {
    return Refuse(
        TooLarge("steps", absl::StrCat("has ", count, " entries, at most ", most, " are allowed")));
  }
  reply_budget_bytes_ = BatchReplyBudget(limits, count);
  const auto deadline = SteadyDeadline(context);
  steps_.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    steps_.push_back(std::make_unique<Step>(this, i, response_->add_results()));
    Step& step = *steps_.back();
    (void)step.Fill(request.steps(i), step.result()->mutable_response(), deadline);
    DecodeCall& call = step.call();
    call.chain = &chains_[call.session_id];
    call.reply_budget_bytes = &reply_budget_bytes_;
  }
  remaining_.fetch_add(count);
  steps_made_.store(true);
  if (cancelled_.load()) OnCancel();
  for (const std::unique_ptr<Step>& step : steps_) backend().engine().Submit(&step->call());
  StepEnded();
}

void DecodeBatchReactor::OnCancel() {
  cancelled_.store(true);
  if (!steps_made_.load()) return;
  for (const std::unique_ptr<Step>& step : steps_) {
    step->call().cancelled.store(true, std::memory_order_relaxed);
  }
}

void DecodeBatchReactor::StepEnded() {
  if (remaining_.fetch_sub(1) == 1) End(absl::OkStatus());
}

}  // namespace attnserve
