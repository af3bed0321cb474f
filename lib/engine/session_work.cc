#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/errors.h"
#include "lib/engine/engine_impl.h"

namespace attnserve {
namespace {

absl::Status Reset(const SessionCall& call, Session& session) {
  const int64_t count = static_cast<int64_t>(session.layers().size());
  std::vector<bool> named(static_cast<size_t>(count), call.layers.empty());
  for (const int32_t layer : call.layers) {
    if (layer < 0 || layer >= count) return LayerNotFound(layer, count);
    named[static_cast<size_t>(layer)] = true;
  }
  for (size_t layer = 0; layer < named.size(); ++layer) {
    if (named[layer]) session.Reset(layer);
  }
  return absl::OkStatus();
}

absl::Status Truncate(const SessionCall& call, Session& session) {
  if (call.length < 0) {
    return BadOption("length", absl::StrCat("is ", call.length, "; expected >= 0"));
  }
  int64_t longest = 0;
  for (const Session::Layer& layer : session.layers()) longest = std::max(longest, layer.length);
  if (call.length > longest) {
    return PositionBeyondLength("length", call.length, longest, "keep at most as many");
  }
  session.Truncate(call.length);
  return absl::OkStatus();
}

// Has no rows: Begin does it all.
class SessionWork final : public Work {
 public:
  SessionWork(SessionCall* call, const WorkContext& context)
      : Work(call, Phase::kDecode, context), session_call_(call) {}

  absl::Status Begin() override {
    Finish();
    Session& session = *entry->session;
    switch (session_call_->kind) {
      case SessionCall::Kind::kReset:
        return Reset(*session_call_, session);
      case SessionCall::Kind::kTruncate:
        return Truncate(*session_call_, session);
      case SessionCall::Kind::kDelete:
        session_call_->existed = true;
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }
  SessionCall* session_call() override { return session_call_; }

 private:
  absl::Status NextWave() override { return absl::OkStatus(); }

  SessionCall* session_call_;
};

}  // namespace

std::unique_ptr<Work> MakeSessionWork(SessionCall* call, const WorkContext& context) {
  return std::make_unique<SessionWork>(call, context);
}

}  // namespace attnserve
