// How a call is cut into waves.
#include "lib/engine/work.h"

#include <limits>

#include "gtest/gtest.h"

namespace attnserve {
namespace {

class Waves final : public Work {
 public:
  explicit Waves(const WorkContext& context) : Work(nullptr, Phase::kForward, context) {}
  absl::Status Begin() override { return absl::OkStatus(); }
  using Work::SequencesPerWave;

 protected:
  absl::Status NextWave() override { return absl::OkStatus(); }
};

TEST(SequencesPerWave, HaveARowsWorthOfASliceAndFitTheScratch) {
  EngineLimits limits;
  limits.slice_rows = 256;
  const Waves waves({&limits, nullptr, nullptr});
  const KvLayout small = {1, 16, 16, DType::kF32};
  ASSERT_EQ(small.block_bytes(), 8 << 10);
  EXPECT_EQ(waves.SequencesPerWave(small, 1, 1), 256);
  EXPECT_EQ(waves.SequencesPerWave(small, 1, 32), 8);
  EXPECT_EQ(waves.SequencesPerWave(small, 100, 7), 2);
  EXPECT_EQ(waves.SequencesPerWave(small, 0, 0), 256);
  EXPECT_EQ(waves.SequencesPerWave(small, 257, 1), 1);

  // A block of 4 MiB for a single token: 16 of them are 64 MiB.
  const KvLayout wide = {64, 128, 128, DType::kF32};
  ASSERT_EQ(wide.block_bytes(), 4 << 20);
  EXPECT_EQ(waves.SequencesPerWave(wide, 1, 1), 16);
  EXPECT_EQ(waves.SequencesPerWave(wide, 1, 64), 4);

  // One sequence always runs, whatever it takes.
  EXPECT_EQ(waves.SequencesPerWave(wide, 1, int64_t{1} << 31), 1);
}

}  // namespace
}  // namespace attnserve
