#include "paceline/observe/recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "paceline/base/error.h"
#include "paceline/observe/memory.h"

namespace paceline {
namespace {

/// Runs a step through a timeline. Its times come from the clock, so tests assert on counts, samples and relations.
void run_step(Timeline& timeline, double samples) {
  timeline.begin_step(Phase::DataWait);
  timeline.add_samples(samples);
  timeline.enter(Phase::Forward);
  timeline.enter(Phase::Backward);
  timeline.enter(Phase::Communication);
  timeline.enter(Phase::Optimizer);
  timeline.pause();
}

TEST(Histogram, PercentilesAreWithinHalfAPercentOfTheExactOnes) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> exponent(-8, 4);
    std::vector<double> values(1 + random() % 2000);
    DurationHistogram histogram;
    for (double& value : values) histogram.add(value = std::pow(10, exponent(random)));
    std::sort(values.begin(), values.end());
    for (double percent : {0.0, 1.0, 50.0, 90.0, 99.0, 100.0}) {
      const auto rank = static_cast<std::size_t>(std::ceil(percent / 100 * static_cast<double>(values.size())));
      const double exact = values[std::max<std::size_t>(1, rank) - 1];
      EXPECT_NEAR(histogram.percentile(percent) / exact, 1, 0.005) << percent;
    }
    EXPECT_LE(histogram.percentile(50), histogram.percentile(90));
    EXPECT_EQ(histogram.count(), values.size());
    if (HasFailure()) return;
  }
}

TEST(Histogram, OneValueIsExactAndEdgesAreCounted) {
  DurationHistogram histogram;
  EXPECT_EQ(histogram.percentile(50), 0);
  histogram.add(0.0123);
  EXPECT_DOUBLE_EQ(histogram.percentile(1), 0.0123);
  EXPECT_DOUBLE_EQ(histogram.percentile(99), 0.0123);
  histogram.add(0);
  histogram.add(1e9);
  EXPECT_EQ(histogram.count(), 3u);
}

TEST(Recorder, LeavesOutWarmUp) {
  Timeline timeline;
  Recorder recorder(timeline, {.rank = 3, .threads = 2, .warmup_steps = 5});
  for (int i = 0; i < 5; ++i) run_step(timeline, 1000);
  for (int i = 0; i < 10; ++i) run_step(timeline, 8);
  const RankSummary summary = recorder.summary();
  EXPECT_EQ(summary.rank, 3);
  EXPECT_EQ(summary.threads, 2);
  EXPECT_EQ(summary.steps, 15u);
  EXPECT_EQ(summary.warmup_steps, 5u);
  EXPECT_NEAR(summary.samples_per_s * summary.breakdown.step_s(), 8, 1e-9);  // Samples of a measured step.
  EXPECT_EQ(summary.pid, ::getpid());
  EXPECT_FALSE(summary.host.empty());
  EXPECT_FALSE(summary.cores.empty());
}

TEST(Recorder, UsesAllStepsWhenThereWasOnlyWarmUp) {
  Timeline timeline;
  Recorder recorder(timeline, {.warmup_steps = 5});
  for (int i = 0; i < 5; ++i) run_step(timeline, 8);
  const RankSummary summary = recorder.summary();
  EXPECT_EQ(summary.steps, 5u);
  EXPECT_EQ(summary.warmup_steps, 0u);
  EXPECT_NEAR(summary.samples_per_s * summary.breakdown.step_s(), 8, 1e-9);

  run_step(timeline, 16);
  EXPECT_EQ(recorder.summary().warmup_steps, 5u);
  EXPECT_NEAR(recorder.summary().samples_per_s * recorder.summary().breakdown.step_s(), 16, 1e-9);
}

TEST(Recorder, StatisticsAreConsistent) {
  Timeline timeline;
  Recorder recorder(timeline);
  for (int i = 0; i < 100; ++i) run_step(timeline, 8);
  const StepTimes step = recorder.summary().step;
  EXPECT_EQ(step.mean_s, recorder.summary().breakdown.step_s());
  EXPECT_GT(step.p50_s, 0);
  EXPECT_LE(step.p50_s, step.p90_s);
  EXPECT_LE(step.p90_s, step.p99_s);
}

TEST(Recorder, NothingRecordedIsZeroNotNaN) {
  Timeline timeline;
  Recorder recorder(timeline);
  const RankSummary summary = recorder.summary();
  EXPECT_EQ(summary.steps, 0u);
  EXPECT_EQ(summary.samples_per_s, 0);
  EXPECT_EQ(summary.breakdown.step_s(), 0);
  EXPECT_EQ(recorder.live().samples_per_s, 0);
}

TEST(Recorder, LiveFiguresForgetOldSteps) {
  Timeline timeline;
  Recorder recorder(timeline, {.warmup_steps = 2, .live_steps = 4});
  for (int i = 0; i < 7; ++i) run_step(timeline, 1e6);
  for (int i = 0; i < 3; ++i) run_step(timeline, 8);
  const auto samples_per_step = [&] { return recorder.live().samples_per_s * recorder.live().step_s; };
  EXPECT_NEAR(samples_per_step(), (1e6 + 3 * 8) / 4, 1e-3);
  run_step(timeline, 8);
  EXPECT_NEAR(samples_per_step(), 8, 1e-9);
  EXPECT_EQ(recorder.live().steps, 11u);
  EXPECT_GE(recorder.live().exposed_share, 0);
  EXPECT_LE(recorder.live().exposed_share + recorder.live().data_wait_share, 1);
}

TEST(Recorder, DetachesWhenDestroyed) {
  Timeline timeline;
  { Recorder recorder(timeline); }
  run_step(timeline, 8);  // Would write to the destroyed recorder; the sanitizer would see it.
  EXPECT_FALSE(timeline.in_step());
}

TEST(Recorder, KeepsTheFirstFindingOfEachId) {
  Timeline timeline;
  Recorder recorder(timeline);
  recorder.add_finding({.id = "same_batch", .severity = Severity::Error, .evidence = "step 0"});
  recorder.add_finding({.id = "same_batch", .severity = Severity::Error, .evidence = "step 1"});
  recorder.add_finding({.id = "drift", .evidence = "step 1"});
  const auto found = recorder.summary().findings;
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].evidence, "step 0");
  EXPECT_EQ(found[1].id, "drift");
}

TEST(Memory, ThePeakCoversWhatWasTouched) {
  const auto before = peak_resident_bytes();
  ASSERT_TRUE(before.has_value());
  constexpr std::size_t kBytes = 64u << 20;
  std::vector<char> block(kBytes, 1);
  EXPECT_EQ(block[kBytes / 2], 1);
  EXPECT_GE(*peak_resident_bytes(), kBytes);
  EXPECT_GE(*peak_resident_bytes(), *before);
}

RankSummary random_summary(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> real(0, 10);
  RankSummary s;
  s.rank = static_cast<int>(random() % 100);
  s.host = "höst \"7\"\n";
  s.pid = static_cast<std::int64_t>(random() % 100000);
  s.threads = 4;
  s.cores = {0, 2, 5};
  s.steps = random();
  s.warmup_steps = random() % 10;
  s.samples_per_s = real(random);
  s.step = {real(random), real(random), real(random), real(random)};
  s.breakdown = {real(random), real(random), real(random), real(random), real(random), real(random),
                 real(random), real(random), real(random), real(random), real(random)};
  if (random() % 2) s.peak_bytes = random();
  for (auto i = random() % 3; i > 0; --i) {
    s.findings.push_back({"id", Severity::Warning, "0 and 1", real(random), "fix", real(random)});
  }
  return s;
}

TEST(RankSummary, GoesThroughTextUnchanged) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RankSummary summary = random_summary(seed);
    const std::string text = to_json_text(summary);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    const RankSummary back = rank_summary_from_json_text(text);
    EXPECT_EQ(to_json_text(back), text);
    EXPECT_EQ(back.host, summary.host);
    EXPECT_EQ(back.breakdown.step_s(), summary.breakdown.step_s());
    EXPECT_EQ(back.breakdown.operations, summary.breakdown.operations);
    EXPECT_EQ(back.peak_bytes, summary.peak_bytes);
    EXPECT_EQ(back.findings, summary.findings);
    EXPECT_EQ(back.cores, summary.cores);
  }
}

TEST(RankSummary, DamagedTextIsCorrupt) {
  const std::string text = to_json_text(random_summary(1));
  for (std::size_t cut = 0; cut < text.size(); ++cut) {
    EXPECT_THROW(rank_summary_from_json_text(text.substr(0, cut)), Error) << cut;
  }
  std::string renamed = text;
  renamed.replace(renamed.find("\"pid\""), 5, "\"dip\"");
  try {
    rank_summary_from_json_text(renamed);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::Corrupt);
    EXPECT_NE(e.message().find("'pid'"), std::string::npos) << e.message();
  }
}

TEST(SlowestRank, IsComparedWithTheMedianOfTheOthers) {
  std::vector<RankSummary> ranks(4);
  const double busy[] = {2, 1, 6, 3};
  for (int i = 0; i < 4; ++i) {
    ranks[static_cast<std::size_t>(i)].rank = i;
    ranks[static_cast<std::size_t>(i)].breakdown.forward_s = busy[i];
  }
  ASSERT_TRUE(slowest_rank(ranks));
  EXPECT_EQ(slowest_rank(ranks)->summary->rank, 2);
  EXPECT_DOUBLE_EQ(slowest_rank(ranks)->ratio, 3);  // The others are 1, 2, 3.
  ranks.resize(3);
  EXPECT_DOUBLE_EQ(slowest_rank(ranks)->ratio, 4);  // 1 and 2.
  ranks.resize(1);
  EXPECT_FALSE(slowest_rank(ranks));
  EXPECT_FALSE(slowest_rank(std::vector<RankSummary>(3)));
}

}  // namespace
}  // namespace paceline
