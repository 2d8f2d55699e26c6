#include "paceline/base/timeline.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

namespace paceline {
namespace {

class TimelineTest : public testing::Test {
 protected:
  TimelineTest() {
    timeline.set_sink([this](const StepEvents& events) { steps.push_back(events); });
  }

  static std::vector<Phase> phases(const StepEvents& events) {
    std::vector<Phase> list;
    for (const PhaseInterval& i : events.phases) list.push_back(i.phase);
    return list;
  }

  Timeline timeline;
  std::vector<StepEvents> steps;
};

TEST_F(TimelineTest, PhasesHaveNoGapsAndNeighboursDiffer) {
  constexpr Phase kAny[] = {Phase::DataWait,  Phase::Forward, Phase::Backward, Phase::Communication,
                            Phase::Optimizer, Phase::Other,   Phase::Outside};
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    steps.clear();
    const Nanoseconds before = now();
    timeline.begin_step(Phase::DataWait);
    for (unsigned i = random() % 30; i > 0; --i) timeline.enter(kAny[random() % 7]);
    timeline.enter(Phase::Optimizer);
    timeline.pause();
    const Nanoseconds after = now();

    ASSERT_EQ(steps.size(), 1u);
    const auto& list = steps[0].phases;
    Nanoseconds sum{};
    for (std::size_t i = 0; i < list.size(); ++i) {
      sum += list[i].end - list[i].begin;
      EXPECT_NE(list[i].phase, Phase::Outside);
      if (i == 0) continue;
      EXPECT_EQ(list[i].begin, list[i - 1].end);
      EXPECT_NE(list[i].phase, list[i - 1].phase);
    }
    EXPECT_EQ(sum, list.back().end - list.front().begin);
    EXPECT_GE(list.front().begin, before);
    EXPECT_LE(list.back().end, after);
    if (HasFailure()) return;
  }
}

TEST_F(TimelineTest, AStepBeginsWhereTheOneBeforeEnds) {
  for (int i = 0; i < 3; ++i) {
    timeline.begin_step(Phase::DataWait);
    timeline.enter(Phase::Optimizer);
  }
  timeline.pause();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1].phases.front().begin, steps[0].phases.back().end);
  EXPECT_EQ(steps[2].phases.front().begin, steps[1].phases.back().end);
}

TEST_F(TimelineTest, NothingIsRecordedOutside) {
  timeline.enter(Phase::Forward);
  timeline.enter(Phase::Optimizer);
  timeline.add_samples(5);
  timeline.add_operation({});
  EXPECT_FALSE(timeline.in_step());
  timeline.pause();
  EXPECT_TRUE(steps.empty());

  timeline.begin_step(Phase::DataWait);
  timeline.enter(Phase::Optimizer);
  timeline.pause();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].samples, 0);
  EXPECT_TRUE(steps[0].operations.empty());
}

TEST_F(TimelineTest, StepsWithoutOptimizerAreDroppedWithAllTheirEvents) {
  timeline.begin_step(Phase::DataWait);
  timeline.enter(Phase::Forward);
  timeline.add_samples(7);
  timeline.add_operation({});
  timeline.begin_step(Phase::DataWait);
  timeline.add_samples(2);
  timeline.enter(Phase::Optimizer);
  timeline.pause();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].samples, 2);
  EXPECT_TRUE(steps[0].operations.empty());
  EXPECT_EQ(phases(steps[0]), (std::vector{Phase::DataWait, Phase::Optimizer}));
}

TEST_F(TimelineTest, AStepThatBeginsInOptimizerIsATrainingStep) {
  timeline.begin_step(Phase::Optimizer);
  timeline.pause();
  EXPECT_EQ(steps.size(), 1u);
}

TEST_F(TimelineTest, SamplesAddUpAndOperationsKeepTheirOrder) {
  timeline.begin_step(Phase::Optimizer);
  timeline.add_samples(3);
  timeline.add_samples(4);
  timeline.add_operation({{}, {}, {}, 1, "first"});
  timeline.add_operation({{}, {}, {}, 2, "second"});
  timeline.pause();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].samples, 7);
  ASSERT_EQ(steps[0].operations.size(), 2u);
  EXPECT_EQ(steps[0].operations[0].label, "first");
  EXPECT_EQ(steps[0].operations[1].label, "second");
}

TEST_F(TimelineTest, AScopedPhaseGoesBackToTheOneBefore) {
  timeline.begin_step(Phase::Backward);
  {
    ScopedPhase outer(timeline, Phase::Communication);
    {
      ScopedPhase inner(timeline, Phase::Optimizer);
      EXPECT_EQ(timeline.phase(), Phase::Optimizer);
    }
    EXPECT_EQ(timeline.phase(), Phase::Communication);
  }
  EXPECT_EQ(timeline.phase(), Phase::Backward);
  timeline.pause();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(phases(steps[0]), (std::vector{Phase::Backward, Phase::Communication, Phase::Optimizer,
                                           Phase::Communication, Phase::Backward}));
}

TEST_F(TimelineTest, AScopedPhaseGoesBackWhenAnExceptionLeavesIt) {
  timeline.begin_step(Phase::Forward);
  try {
    ScopedPhase scope(timeline, Phase::Communication);
    throw std::runtime_error("peer lost");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(timeline.phase(), Phase::Forward);
  }
}

TEST_F(TimelineTest, AScopedPhaseOutsideStaysOutside) {
  ScopedPhase scope(timeline, Phase::Communication);
  EXPECT_FALSE(timeline.in_step());
}

TEST_F(TimelineTest, WithoutASinkStepsAreForgotten) {
  timeline.begin_step(Phase::Optimizer);
  timeline.set_sink({});
  timeline.pause();
  EXPECT_TRUE(steps.empty());
}

}  // namespace
}  // namespace paceline
