// A call on its way through the engine: which rows of which layer come next.
#ifndef ATTNSERVE_LIB_ENGINE_WORK_H_
#define ATTNSERVE_LIB_ENGINE_WORK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/attention/attention_layer.h"
#include "lib/base/aligned_buffer.h"
#include "lib/engine/call.h"
#include "lib/engine/engine.h"
#include "lib/engine/observer.h"

namespace attnserve {

struct SessionEntry;

// What works share and the engine owns.
struct WorkContext {
  const EngineLimits* limits = nullptr;
  KvBlockPool* session_pool = nullptr;  // under the cache budget
  KvBlockPool* scratch_pool = nullptr;  // blocks of stateless calls
};

// The two halves of a pass (see LayerPass).
enum class PassPhase { kAppendKeys, kAttend };

// State machine of one call: layer by layer, wave by wave (some batch rows at a time), first all
// keys, then all queries. Lives with the scheduler, except for construction.
//
// Life: Begin, then while !finished(): Take, run the rows, Advance; then Commit - or Abort at any
// time instead.
class Work {
 public:
  Work(Call* call, Phase phase, const WorkContext& context)
      : call_(call), phase_(phase), context_(context) {}
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  Call& call() { return *call_; }
  Phase phase() const { return phase_; }
  virtual int64_t tokens() const { return 0; }             // new tokens, for metrics
  virtual SessionCall* session_call() { return nullptr; }  // if it is one
  // Whether it takes less time than waking a thread, as far as that is known before Begin. Like
  // Begin, it looks at the session.
  virtual bool is_light() { return false; }

  // Checks what could not be checked before the call's turn, reserves all memory. After an error
  // Abort leaves everything as it was.
  virtual absl::Status Begin() = 0;

  bool finished() const { return finished_; }
  const AttentionLayer* layer() const { return current_layer_; }
  PassPhase pass_phase() const { return pass_phase_; }
  // Rows of the current phase that are left in this wave.
  int64_t rows_left() const;
  // Keys a query of this wave may have to look at.
  int64_t keys() const;

  // Adds the next rows to `rows`, at most `limit` (>= 1). Returns how many.
  int64_t Take(int64_t limit, std::vector<PassRows>* rows);

  // After the rows taken have run: on to the next phase, wave or layer.
  absl::Status Advance();

  // Makes the result visible; cannot fail.
  virtual void Commit() {}
  // Undoes everything.
  virtual void Abort() {}

  // What Attend counted.
  int64_t masked_rows() const { return masked_rows_; }
  int64_t nonfinite_values() const { return nonfinite_values_; }

  // The session whose turn this is; null for stateless calls.
  std::shared_ptr<SessionEntry> entry;
  // Set by the scheduler when the work cannot go on.
  absl::Status error;

 protected:
  // Fills passes_ with the next wave of the current or a later layer, sets current_layer_; leaves
  // passes_ empty after the last.
  virtual absl::Status NextWave() = 0;
  // Called when all rows of passes_ have run.
  virtual void WaveEnded() {}

  // Starts the first wave; the last thing Begin does.
  absl::Status Start();
  void Finish() { finished_ = true; }

  // Sequences of `queries` and `keys` rows that one wave of a stateless call takes, at least 1: as
  // many as a slice has rows, and as fit into 64 MiB of scratch. A block holds 64 tokens, so short
  // sequences take up to 64 times what was sent.
  int64_t SequencesPerWave(const KvLayout& layout, int64_t queries, int64_t keys) const;

  // A sequence that is thrown away after the wave, with room for `tokens`.
  absl::StatusOr<KvSequence*> Scratch(const KvLayout& layout, int64_t tokens);

  Call* call_;
  Phase phase_;
  WorkContext context_;
  const AttentionLayer* current_layer_ = nullptr;
  absl::InlinedVector<LayerPass, 1> passes_;
  std::vector<std::unique_ptr<KvSequence>> scratch_;

 private:
  int64_t RowsOf(const LayerPass& pass) const;
  absl::Status SkipToRows();
  void EndWave();

  PassPhase pass_phase_ = PassPhase::kAppendKeys;
  size_t pass_index_ = 0;
  int64_t row_ = 0;
  bool finished_ = false;
  int64_t masked_rows_ = 0;
  int64_t nonfinite_values_ = 0;
};

// Each checks its call completely, as far as that is possible without the caches, and returns the
// work to do.
absl::StatusOr<std::unique_ptr<Work>> MakeForwardWork(ForwardCall* call,
                                                      const WorkContext& context);
absl::StatusOr<std::unique_ptr<Work>> MakeAttendWork(AttendCall* call, const WorkContext& context);

// A step of `session`. Never fails: a wrong step takes its turn and then fails in Begin. The
// session may be null if call->error is set.
std::unique_ptr<Work> MakeDecodeWork(DecodeCall* call, std::shared_ptr<Session> session,
                                     const WorkContext& context);

// A reset, truncation or deletion, at its turn.
std::unique_ptr<Work> MakeSessionWork(SessionCall* call, const WorkContext& context);

// Everything about a step that does not depend on the tokens held.
absl::Status CheckDecodeCall(const DecodeCall& call, Session& session, const EngineLimits& limits);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_ENGINE_WORK_H_
