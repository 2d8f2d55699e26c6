#include "paceline/observe/breakdown.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace paceline {
namespace {

using std::chrono::milliseconds;

constexpr Phase kPhases[] = {Phase::DataWait,      Phase::Forward,   Phase::Backward,
                             Phase::Communication, Phase::Optimizer, Phase::Other};

StepEvents random_step(std::mt19937_64& random) {
  StepEvents events;
  Nanoseconds at(static_cast<std::int64_t>(random() % 1'000'000'000'000'000));
  const Nanoseconds begin = at;
  const std::size_t phases = random() % 20;
  for (std::size_t i = 0; i < phases; ++i) {
    const Nanoseconds next = at + Nanoseconds(static_cast<std::int64_t>(random() % 10'000'000));
    events.phases.push_back({kPhases[random() % 6], at, next});
    at = next;
  }
  const std::size_t operations = random() % 8;
  for (std::size_t i = 0; i < operations; ++i) {
    // Some begin before the step, some end after it, some tell of an impossible arrival.
    const auto moment = [&] {
      const auto span = static_cast<std::uint64_t>((at - begin).count()) + 2'000'000;
      return begin - milliseconds(1) + Nanoseconds(static_cast<std::int64_t>(random() % span));
    };
    OperationInterval operation{moment(), moment(), {}, random() % 1000, "bucket"};
    operation.completed = operation.launched + Nanoseconds(static_cast<std::int64_t>(random() % 20'000'000));
    events.operations.push_back(operation);
  }
  return events;
}

double& part(StepBreakdown& parts, Phase phase) {
  switch (phase) {
    case Phase::DataWait: return parts.data_wait_s;
    case Phase::Forward: return parts.forward_s;
    case Phase::Backward: return parts.backward_s;
    case Phase::Communication: return parts.exposed_comm_s;
    case Phase::Optimizer: return parts.optimizer_s;
    default: return parts.other_s;
  }
}

Nanoseconds length(const StepEvents& events) {
  return events.phases.empty() ? Nanoseconds::zero() : events.phases.back().end - events.phases.front().begin;
}

std::int64_t nanoseconds(double s) { return std::llround(s * 1e9); }

TEST(Breakdown, PartsAddUpToTheStep) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const StepEvents events = random_step(random);
    const StepBreakdown parts = breakdown(events);
    EXPECT_EQ(nanoseconds(parts.step_s()), length(events).count());
    EXPECT_EQ(nanoseconds(parts.busy_s() + parts.exposed_comm_s), length(events).count());
    EXPECT_EQ(nanoseconds(parts.wait_for_peers_s + parts.transfer_s), nanoseconds(parts.exposed_comm_s));
    EXPECT_GE(parts.transfer_s, 0);
    EXPECT_GE(parts.wait_for_peers_s, 0);
    EXPECT_LE(parts.hidden_comm_s, parts.step_s() - parts.exposed_comm_s - parts.data_wait_s + 1e-12);
    EXPECT_EQ(parts.operations, static_cast<double>(events.operations.size()));
    if (HasFailure()) return;
  }
}

TEST(Breakdown, ADelayInOnePhaseShowsInThatPartOnly) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    StepEvents events = random_step(random);
    if (events.phases.empty()) continue;
    events.operations.clear();
    const StepBreakdown before = breakdown(events);

    const std::size_t slowed = random() % events.phases.size();
    const milliseconds delay(7);
    events.phases[slowed].end += delay;
    for (std::size_t i = slowed + 1; i < events.phases.size(); ++i) {
      events.phases[i].begin += delay;
      events.phases[i].end += delay;
    }
    StepBreakdown after = breakdown(events);
    for (Phase phase : kPhases) {
      StepBreakdown old = before;
      const auto grown = nanoseconds(part(after, phase)) - nanoseconds(part(old, phase));
      EXPECT_EQ(grown, phase == events.phases[slowed].phase ? Nanoseconds(delay).count() : 0);
    }
    if (HasFailure()) return;
  }
}

/// Forward 0-10, backward 10-30, communication 30-50, optimizer 50-60 ms.
StepEvents plain_step() {
  StepEvents events;
  events.phases = {{Phase::Forward, milliseconds(0), milliseconds(10)},
                   {Phase::Backward, milliseconds(10), milliseconds(30)},
                   {Phase::Communication, milliseconds(30), milliseconds(50)},
                   {Phase::Optimizer, milliseconds(50), milliseconds(60)}};
  return events;
}

OperationInterval operation(int launched_ms, int arrival_ms, int completed_ms) {
  return {milliseconds(launched_ms), milliseconds(arrival_ms), milliseconds(completed_ms), 100, "bucket"};
}

TEST(Breakdown, CommunicationDuringComputeIsHiddenAndCountedOnce) {
  StepEvents events = plain_step();
  events.operations = {operation(15, 15, 25), operation(20, 20, 40)};
  const StepBreakdown parts = breakdown(events);
  EXPECT_DOUBLE_EQ(parts.hidden_comm_s, 0.015);  // 15-30, though the two ran 10 + 20 ms.
  EXPECT_DOUBLE_EQ(parts.exposed_comm_s, 0.020);
  EXPECT_DOUBLE_EQ(parts.wait_for_peers_s, 0);
  EXPECT_DOUBLE_EQ(parts.comm_bytes, 200);
}

TEST(Breakdown, WaitingForPeersEndsWithTheLastArrival) {
  StepEvents events = plain_step();
  events.operations = {operation(25, 42, 50)};
  const StepBreakdown parts = breakdown(events);
  EXPECT_DOUBLE_EQ(parts.wait_for_peers_s, 0.012);  // 30-42: what lies in backward costs nothing.
  EXPECT_DOUBLE_EQ(parts.transfer_s, 0.008);
}

TEST(Breakdown, AnOperationQueuedBehindATransferDoesNotWaitForPeers) {
  StepEvents events = plain_step();
  events.operations = {operation(25, 25, 40), operation(28, 40, 50)};
  EXPECT_DOUBLE_EQ(breakdown(events).wait_for_peers_s, 0);
  EXPECT_DOUBLE_EQ(breakdown(events).transfer_s, 0.020);
}

TEST(Breakdown, OperationsOfOtherStepsCountForTheirShareOfThisOne) {
  StepEvents events = plain_step();
  events.operations = {operation(-100, -50, 4), operation(55, 56, 500)};
  EXPECT_DOUBLE_EQ(breakdown(events).hidden_comm_s, 0.004 + 0.005);
}

TEST(Breakdown, WhatSharesTookIsAddedUp) {
  StepEvents events = plain_step();
  events.operations = {operation(15, 15, 25), operation(20, 20, 40)};
  for (OperationInterval& one : events.operations) one.working = milliseconds(3);
  EXPECT_DOUBLE_EQ(breakdown(events).reducing_s, 0.006);
}

TEST(Breakdown, CommunicationDuringDataWaitIsNeitherHiddenNorExposed) {
  StepEvents events;
  events.phases = {{Phase::DataWait, milliseconds(0), milliseconds(10)},
                   {Phase::Optimizer, milliseconds(10), milliseconds(20)}};
  events.operations = {operation(0, 0, 10)};
  EXPECT_DOUBLE_EQ(breakdown(events).hidden_comm_s, 0);
  EXPECT_DOUBLE_EQ(breakdown(events).exposed_comm_s, 0);
}

TEST(Breakdown, ArrivalOutsideOfTheOperationIsClamped) {
  StepEvents events = plain_step();
  events.operations = {operation(35, 10, 45)};
  EXPECT_DOUBLE_EQ(breakdown(events).wait_for_peers_s, 0);
  events.operations = {operation(35, 90, 45)};
  EXPECT_DOUBLE_EQ(breakdown(events).wait_for_peers_s, 0.010);
}

TEST(Breakdown, NothingTakesNoTime) { EXPECT_EQ(breakdown({}).step_s(), 0); }

}  // namespace
}  // namespace paceline
