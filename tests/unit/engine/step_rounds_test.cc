#include "lib/engine/step_rounds.h"

#include <chrono>
#include <vector>

#include "gtest/gtest.h"

namespace attnserve {
namespace {

using std::chrono::microseconds;

class StepRoundsTest : public ::testing::Test {
 protected:
  // A round that takes `took` and has a step of each of `sessions`.
  void Run(const std::vector<size_t>& sessions, microseconds took) {
    rounds_.Begin(now_);
    for (const size_t session : sessions) rounds_.Join(&last_round_.at(session));
    if (sessions.size() > 1) rounds_.Share();
    now_ += took;
    rounds_.End(now_);
  }
  // How long a round waits whose `steps` steps have just come.
  microseconds Wait(int64_t steps) {
    return std::chrono::duration_cast<microseconds>(rounds_.WaitsUntil(now_, now_, steps) - now_);
  }

  StepRounds rounds_;
  StepRounds::Time now_{std::chrono::hours(1)};
  std::vector<int64_t> last_round_ = std::vector<int64_t>(8, -1);
};

TEST_F(StepRoundsTest, WaitForTheSessionsOfTheLastTwo) {
  EXPECT_EQ(Wait(1), microseconds(0)) << "nothing is known yet";
  Run({0, 1}, microseconds(2000));
  EXPECT_EQ(rounds_.expected_sessions(), 2);
  Run({2}, microseconds(2000));
  EXPECT_EQ(rounds_.expected_sessions(), 3);
  EXPECT_EQ(Wait(1), microseconds(500)) << "a quarter of a round";
  EXPECT_EQ(Wait(2), microseconds(500));
  EXPECT_EQ(Wait(3), microseconds(0)) << "all are there";
  Run({0, 2, 2}, microseconds(2000));
  EXPECT_EQ(rounds_.expected_sessions(), 2) << "2 was in both, 1 has gone";
}

TEST_F(StepRoundsTest, WaitNeitherLongNorForNothing) {
  Run({0, 1}, microseconds(100000));
  EXPECT_EQ(Wait(1), microseconds(1000));
  Run({0, 1}, microseconds(799));
  EXPECT_EQ(Wait(1), microseconds(0)) << "less than it costs";
  Run({0, 1}, microseconds(800));
  EXPECT_EQ(Wait(1), microseconds(200));
}

TEST_F(StepRoundsTest, DoNotWaitForWhoTakesLongerThanARound) {
  Run({0, 1}, microseconds(2000));
  const StepRounds::Time end = now_;
  now_ += microseconds(9000);  // a long call ran meanwhile
  EXPECT_EQ(rounds_.WaitsUntil(now_, end + microseconds(2000), 1), now_ + microseconds(500));
  EXPECT_EQ(rounds_.WaitsUntil(now_, end + microseconds(2001), 1), now_);
}

TEST_F(StepRoundsTest, DoNotWaitForAWhileAfterTheyDidInVain) {
  Run({0, 1}, microseconds(2000));
  EXPECT_GT(Wait(1), microseconds(0));
  Run({1}, microseconds(2000));
  for (int round = 0; round < 16; ++round) {
    EXPECT_EQ(Wait(1), microseconds(0)) << round;
    Run({round % 2 == 0 ? size_t{0} : size_t{1}}, microseconds(2000));
  }
  EXPECT_GT(Wait(1), microseconds(0)) << "tried again";
  Run({0, 1}, microseconds(2000));
  EXPECT_GT(Wait(1), microseconds(0)) << "not in vain: goes on";
}

}  // namespace
}  // namespace attnserve
