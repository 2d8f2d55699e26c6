// What ranks decide by each other's headers.
#include "paceline/sync/step_decisions.h"

#include <gtest/gtest.h>

#include <vector>

namespace paceline {
namespace {

using Pair = std::pair<int, int>;
constexpr std::uint32_t kEnded = StepPrologue::kEnded, kStop = StepPrologue::kStop, kLoss = StepPrologue::kLoss;

std::vector<StepPrologue> with_flags(std::initializer_list<std::uint32_t> flags) {
  std::vector<StepPrologue> all;
  for (const std::uint32_t of_rank : flags) all.push_back({.weight = 0.5, .backwards = 1, .flags = of_rank});
  return all;
}

TEST(StepDecisions, MembersAreTheFirstWithDataTheFirstWithoutAndWhatAnyAsksFor) {
  const StepMembers all = members_of(with_flags({0, 0, 0}));
  EXPECT_EQ(all.first_active, 0);
  EXPECT_FALSE(all.first_ended || all.stop || all.loss_follows);
  EXPECT_EQ(all.weight, 1.5);
  const StepMembers some = members_of(with_flags({kEnded, kLoss, kEnded | kStop}));
  EXPECT_EQ(some.first_active, 1);
  EXPECT_EQ(some.first_ended, 0);
  EXPECT_TRUE(some.stop && some.loss_follows);
  EXPECT_EQ(members_of(with_flags({kEnded, kEnded})).first_active, std::nullopt);
}

TEST(StepDecisions, BackwardsMustBeEqualAmongThoseThatHaveAny) {
  const auto different = [](std::initializer_list<std::uint32_t> counts) {
    std::vector<StepPrologue> all;
    for (const std::uint32_t count : counts) all.push_back({.backwards = count});
    return different_backwards(all);
  };
  EXPECT_EQ(different({2, 2, 2}), std::nullopt);
  EXPECT_EQ(different({0, 2, 0, 2}), std::nullopt);
  EXPECT_EQ(different({0, 0}), std::nullopt);
  EXPECT_EQ(different({0, 2, 0, 3, 1}), (Pair{1, 3}));
}

TEST(StepDecisions, TheFirstRankWithABadGradientIsNamed) {
  std::vector<StepEpilogue> all(3);
  EXPECT_FALSE(bad_gradient(all));
  all[2].bad_parameter = 1;
  all[1].bad_parameter = 8;
  ASSERT_TRUE(bad_gradient(all));
  EXPECT_EQ(bad_gradient(all)->rank, 1);
  EXPECT_EQ(bad_gradient(all)->parameter, 7u);
}

TEST(StepDecisions, ReplicasAreSuspectedByHashesAndChangesOfRanksWithData) {
  auto before = with_flags({kEnded, 0, 0});
  std::vector<StepEpilogue> after(3);
  after[0].state_hash = 7;  // of a rank that no longer steps
  before[0].changes = 7;
  EXPECT_FALSE(may_have_drifted(before, after));
  before[2].changes = 1;
  EXPECT_TRUE(may_have_drifted(before, after));
  before[1].changes = 1;
  EXPECT_FALSE(may_have_drifted(before, after));
  after[2].state_hash = 5;
  EXPECT_TRUE(may_have_drifted(before, after));
  after[1].state_hash = 5;
  EXPECT_FALSE(may_have_drifted(before, after));
  EXPECT_FALSE(may_have_drifted(with_flags({kEnded, kEnded}), after));
}

TEST(StepDecisions, SameGradientsAreThoseWithEqualHashesThatAreNotZero) {
  std::vector<StepEpilogue> all(5);
  all[1].gradient_hash = all[4].gradient_hash = 9;
  all[2].gradient_hash = 8;
  EXPECT_EQ(same_gradients(all), (std::vector<Pair>{{1, 4}}));
}

}  // namespace
}  // namespace paceline
