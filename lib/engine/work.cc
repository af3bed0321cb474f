#include "lib/engine/work.h"

#include <algorithm>

#include "lib/base/status_macros.h"

namespace attnserve {

int64_t Work::RowsOf(const LayerPass& pass) const {
  return pass_phase_ == PassPhase::kAppendKeys ? current_layer_->key_rows(pass)
                                               : current_layer_->query_rows(pass);
}

int64_t Work::rows_left() const {
  int64_t rows = -row_;
  for (size_t i = pass_index_; i < passes_.size(); ++i) rows += RowsOf(passes_[i]);
  return rows;
}

int64_t Work::keys() const {
  int64_t most = 0;
  for (const LayerPass& pass : passes_) most = std::max(most, pass.cache->length());
  return most;
}

int64_t Work::Take(int64_t limit, std::vector<PassRows>* rows) {
  int64_t taken = 0;
  while (taken < limit && pass_index_ < passes_.size()) {
    LayerPass& pass = passes_[pass_index_];
    const int64_t end = std::min(RowsOf(pass), row_ + limit - taken);
    if (end > row_) rows->push_back({&pass, row_, end});
    taken += end - row_;
    row_ = end;
    if (row_ == RowsOf(pass)) {
      ++pass_index_;
      row_ = 0;
    }
  }
  return taken;
}

absl::Status Work::Start() {
  finished_ = false;
  ATTNSERVE_RETURN_IF_ERROR(NextWave());
  pass_phase_ = PassPhase::kAppendKeys;
  pass_index_ = 0;
  row_ = 0;
  return SkipToRows();
}

absl::Status Work::Advance() { return SkipToRows(); }

absl::Status Work::SkipToRows() {
  while (!passes_.empty() && rows_left() == 0) {
    pass_index_ = 0;
    row_ = 0;
    if (pass_phase_ == PassPhase::kAppendKeys) {
      pass_phase_ = PassPhase::kAttend;
    } else {
      EndWave();
      ATTNSERVE_RETURN_IF_ERROR(NextWave());
      pass_phase_ = PassPhase::kAppendKeys;
    }
  }
  finished_ = passes_.empty();
  return absl::OkStatus();
}

void Work::EndWave() {
  WaveEnded();
  for (const LayerPass& pass : passes_) {
    masked_rows_ += pass.masked_rows;
    nonfinite_values_ += pass.nonfinite_values;
  }
  passes_.clear();
  scratch_.clear();
}

int64_t Work::SequencesPerWave(const KvLayout& layout, int64_t queries, int64_t keys) const {
  constexpr int64_t kWaveBytes = int64_t{64} << 20;
  const int64_t rows = std::max<int64_t>({1, queries, keys});
  const int64_t bytes = std::max<int64_t>(1, BlocksForTokens(keys) * layout.block_bytes());
  return std::max<int64_t>(1, std::min(context_.limits->slice_rows / rows, kWaveBytes / bytes));
}

absl::StatusOr<KvSequence*> Work::Scratch(const KvLayout& layout, int64_t tokens) {
  scratch_.push_back(std::make_unique<KvSequence>(layout, context_.scratch_pool));
  ATTNSERVE_RETURN_IF_ERROR(scratch_.back()->Reserve(tokens));
  return scratch_.back().get();
}

}  // namespace attnserve
