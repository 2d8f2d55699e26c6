#include "paceline/observe/findings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "paceline/observe/report.h"

namespace paceline {
namespace {

/// A step of 100 ms in which nothing stands out.
StepBreakdown healthy() {
  StepBreakdown b;
  b.data_wait_s = 0.002;
  b.forward_s = 0.030;
  b.backward_s = 0.055;
  b.exposed_comm_s = 0.004;
  b.optimizer_s = 0.008;
  b.other_s = 0.001;
  b.hidden_comm_s = 0.020;
  b.transfer_s = 0.004;
  b.comm_bytes = 8 << 20;
  b.operations = 4;
  return b;
}

std::vector<RankSummary> ranks_of(int world, const StepBreakdown& breakdown) {
  std::vector<RankSummary> ranks(static_cast<std::size_t>(world));
  for (int r = 0; r < world; ++r) {
    RankSummary& rank = ranks[static_cast<std::size_t>(r)];
    rank.rank = r;
    rank.host = "node";
    rank.threads = 1;
    rank.cores = {0, 1, 2, 3};
    rank.steps = 100;
    rank.samples_per_s = 640;
    rank.breakdown = breakdown;
    rank.step.mean_s = breakdown.step_s();
  }
  return ranks;
}

std::vector<Finding> judge(const std::vector<RankSummary>& ranks, const Outcome& outcome = {}) {
  ConfigInfo config;
  config.codec = "none";
  return make_report({}, config, ranks, outcome).findings;
}

const Finding* find(const std::vector<Finding>& list, const std::string& id) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Finding& f) { return f.id == id; });
  return found == list.end() ? nullptr : &*found;
}

std::vector<std::string> ids(const std::vector<Finding>& list) {
  std::vector<std::string> names;
  names.reserve(list.size());
  for (const Finding& finding : list) names.push_back(finding.id);
  return names;
}

TEST(Findings, AHealthyRunOnlyHearsThatCommunicationIsNotTheProblem) {
  const auto found = judge(ranks_of(4, healthy()));
  EXPECT_EQ(ids(found), std::vector<std::string>{"comm_small"});
  EXPECT_EQ(most_useful(found), nullptr);
}

TEST(Findings, OneWorkerHearsNothingOfCommunication) { EXPECT_TRUE(judge(ranks_of(1, healthy())).empty()); }

TEST(Findings, TheLoaderIsBlamedFromFivePercentOn) {
  StepBreakdown b = healthy();
  b.data_wait_s = 0.025;
  const auto found = judge(ranks_of(2, b));
  const Finding* finding = find(found, "data_wait");
  ASSERT_TRUE(finding);
  EXPECT_DOUBLE_EQ(finding->cost_s, 0.025);
  EXPECT_DOUBLE_EQ(finding->max_gain, 1 / (1 - 0.025 / b.step_s()));
  EXPECT_NE(finding->evidence.find("25.0 ms"), std::string::npos) << finding->evidence;
  EXPECT_NE(finding->fix.find("1,607 samples/s"), std::string::npos) << finding->fix;  // 1280 * 123 / 98.
  EXPECT_EQ(most_useful(found), finding);
}

TEST(Findings, OneSlowLoaderIsNamedThoughTheMeanIsSmall) {
  auto ranks = ranks_of(8, healthy());
  ranks[5].breakdown.data_wait_s = 0.020;
  const auto found = judge(ranks);
  ASSERT_TRUE(find(found, "data_wait"));
  EXPECT_NE(find(found, "data_wait")->evidence.find("Rank 5"), std::string::npos);
}

TEST(Findings, WaitingIsBlamedOnTheSlowRankNotOnTheNetwork) {
  StepBreakdown fast = healthy();
  fast.exposed_comm_s = 0.104;
  fast.wait_for_peers_s = 0.100;
  auto ranks = ranks_of(4, fast);
  ranks[2].breakdown = healthy();
  ranks[2].breakdown.backward_s += 0.100;
  const auto found = judge(ranks);
  const Finding* finding = find(found, "straggler");
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->severity, Severity::Warning);
  EXPECT_DOUBLE_EQ(finding->cost_s, 0.075);
  EXPECT_NE(finding->evidence.find("rank 2 on node"), std::string::npos) << finding->evidence;
  EXPECT_NE(finding->evidence.find("2.04 times"), std::string::npos) << finding->evidence;  // 196 / 96.
  EXPECT_FALSE(find(found, "exposed_transfer"));
}

TEST(Findings, WaitingWithoutASlowRankIsImbalance) {
  StepBreakdown b = healthy();
  b.exposed_comm_s = 0.080;
  b.wait_for_peers_s = 0.070;
  EXPECT_TRUE(find(judge(ranks_of(4, b)), "imbalance"));
  EXPECT_FALSE(find(judge(ranks_of(4, b)), "straggler"));
}

TEST(Findings, TransferIsBlamedWhenItIsMostOfTheExposedTime) {
  StepBreakdown b = healthy();
  b.exposed_comm_s = 0.096;
  b.transfer_s = 0.090;
  b.wait_for_peers_s = 0.006;
  const auto found = judge(ranks_of(4, b));
  const Finding* finding = find(found, "exposed_transfer");
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->severity, Severity::Warning);
  EXPECT_DOUBLE_EQ(finding->cost_s, 0.090);
  EXPECT_NE(finding->fix.find("20 %"), std::string::npos) << finding->fix;  // f = 1/2, k = 4: 1/5.

  b.exposed_comm_s = b.transfer_s = 0.020;
  b.wait_for_peers_s = 0;
  ASSERT_TRUE(find(judge(ranks_of(4, b)), "exposed_transfer"));
  EXPECT_EQ(find(judge(ranks_of(4, b)), "exposed_transfer")->severity, Severity::Info);
}

TEST(Findings, TinyBucketsOptimizerAndOther) {
  StepBreakdown b = healthy();
  b.operations = 50;
  b.comm_bytes = 50 * 1000;
  EXPECT_TRUE(find(judge(ranks_of(2, b)), "tiny_buckets"));
  b.comm_bytes = 50 * 65536;
  EXPECT_FALSE(find(judge(ranks_of(2, b)), "tiny_buckets"));
  b = healthy();
  b.optimizer_s = 0.060;
  EXPECT_TRUE(find(judge(ranks_of(2, b)), "optimizer"));
  b = healthy();
  b.other_s = 0.004;
  EXPECT_TRUE(find(judge(ranks_of(2, b)), "other"));
}

TEST(Findings, ALowSpeedUpWithoutCommunicationPointsToWhatRanksShare) {
  const auto ranks = ranks_of(4, healthy());  // 4 x 640 samples/s.
  const auto found = judge(ranks, {.one_worker_samples_per_s = 1280});
  const Finding* finding = find(found, "shared_resource");
  ASSERT_TRUE(finding);
  EXPECT_NEAR(finding->cost_s, 0.050 - 0.004 - 0.002, 1e-12);
  EXPECT_NE(finding->evidence.find("2.00 times"), std::string::npos) << finding->evidence;
  EXPECT_FALSE(find(judge(ranks, {.one_worker_samples_per_s = 650}), "shared_resource"));
  EXPECT_FALSE(find(judge(ranks), "shared_resource"));
}

TEST(Findings, MoreThreadsThanCoresAreCountedByHost) {
  auto ranks = ranks_of(4, healthy());
  for (RankSummary& rank : ranks) rank.threads = 2;
  const auto found = judge(ranks, {.one_worker_samples_per_s = 1280});
  const Finding* finding = find(found, "oversubscribed");
  ASSERT_TRUE(finding);
  EXPECT_NE(finding->evidence.find("8 compute threads in all share 4 cores"), std::string::npos) << finding->evidence;
  EXPECT_NE(finding->fix.find("OMP_NUM_THREADS=1"), std::string::npos);
  EXPECT_DOUBLE_EQ(finding->max_gain, 2);
  EXPECT_FALSE(find(found, "shared_resource"));

  // Pinned to cores of their own they fit, as they do when spread over two hosts.
  for (RankSummary& rank : ranks) rank.cores = {2 * rank.rank, 2 * rank.rank + 1};
  EXPECT_FALSE(find(judge(ranks), "oversubscribed"));
  for (RankSummary& rank : ranks) {
    rank.cores = {0, 1, 2, 3};
    rank.host = rank.rank < 2 ? "a" : "b";
  }
  EXPECT_FALSE(find(judge(ranks), "oversubscribed"));
  for (RankSummary& rank : ranks) rank.threads = 0;
  EXPECT_FALSE(find(judge(ranks), "oversubscribed"));
}

TEST(Findings, AnErrorIsMoreUsefulThanAnyGain) {
  std::vector<Finding> list = {{"data_wait", Severity::Warning, "", 1, "fix", 9},
                               {"same_batch", Severity::Error, "", 0, "fix", 1},
                               {"other", Severity::Info, "", 1, "", 20}};
  EXPECT_EQ(most_useful(list)->id, "same_batch");
  list.erase(list.begin() + 1);
  EXPECT_EQ(most_useful(list)->id, "data_wait");
}

/// Whatever the figures: bounds are finite and fit their cost, and the order is by severity, then by gain.
TEST(Findings, BoundsFollowFromCosts) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::exponential_distribution<double> time(10);
    auto ranks = ranks_of(1 + static_cast<int>(random() % 8), {});
    for (RankSummary& rank : ranks) {
      StepBreakdown& b = rank.breakdown;
      b = {
          time(random), time(random), time(random), time(random), time(random), time(random), time(random), 0, 0, 0, 0};
      b.wait_for_peers_s = b.exposed_comm_s * static_cast<double>(random() % 101) / 100;
      b.transfer_s = b.exposed_comm_s - b.wait_for_peers_s;
      b.comm_bytes = static_cast<double>(random() % 10'000'000);
      b.operations = static_cast<double>(random() % 40);
      rank.threads = static_cast<int>(random() % 4);
    }
    const auto found = judge(ranks, {.one_worker_samples_per_s = static_cast<double>(random() % 2000)});
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_FALSE(found[i].evidence.empty());
      EXPECT_GE(found[i].cost_s, 0);
      EXPECT_GE(found[i].max_gain, 1);
      EXPECT_LE(found[i].max_gain, 1000.1);
      if (i == 0) continue;
      EXPECT_GE(found[i - 1].severity, found[i].severity);
      if (found[i - 1].severity == found[i].severity) {
        EXPECT_GE(found[i - 1].max_gain, found[i].max_gain);
      }
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace paceline
