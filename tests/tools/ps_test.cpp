// `paceline ps` beside running jobs. Workers are this very binary running one of the disabled Worker tests below.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/comm/status/job_status.h"
#include "tests/support/launched_job.h"

namespace paceline {
namespace {

struct Listing {
  int exit_code;
  std::string out, err;
};

Listing ps(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "ps");
  Job job(std::move(arguments));
  const int exit_code = job.wait();
  return {exit_code, job.out(), job.err()};
}

nlohmann::json job_of(const Listing& listing, pid_t launcher) {
  const auto all = nlohmann::json::parse(listing.out);
  for (const auto& job : all.at("jobs")) {
    if (job.at("launcher") == launcher) return job;
  }
  return nullptr;
}

/// Three ranks, of which rank 2 stays out of barrier #2 until the gate opens.
struct Waiting {
  Waiting()
      : gate((folder.path / "gate").string()), job(run_worker(3, "RankTwoStaysOut", {"--env", "TEST_GATE=" + gate})) {}

  AssertionResult until_two_wait() {
    return eventually([&] {
      job.read_some();
      const auto found = job_of(ps({"--json"}), job.pid());
      int waits = 0;
      for (const auto& rank : found.is_null() ? nlohmann::json::array() : found.at("ranks")) {
        waits += rank.at("waits_in") == "barrier #2" ? 1 : 0;
      }
      return waits == 2;
    });
  }

  TemporaryFolder folder;
  std::string gate;
  Job job;
};

TEST(Ps, ShowsWhereEachRankOfARunningJobIs) {
  Waiting waiting;
  ASSERT_TRUE(waiting.until_two_wait());
  const auto pid = std::to_string(waiting.job.pid());
  const Listing all = ps({});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_NE(all.out.find(fmt::format("(launcher {}, ", pid)), std::string::npos) << all.out;
  const Listing one = ps({pid});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(count(one.out, "job "), 1u) << one.out;
  EXPECT_EQ(count(one.out, "in barrier #2 since "), 2u) << one.out;
  EXPECT_EQ(count(one.out, "user code after barrier #1\n"), 1u) << one.out;
  EXPECT_EQ(count(one.out, "waits since "), 2u) << one.out;  // among the operations
  EXPECT_TRUE(
      std::regex_search(one.out, std::regex("  rank 2 \\(pid \\d+\\):\n +\\d+\\.\\d s ago  done +barrier #1\n")))
      << one.out;
  std::ofstream(waiting.gate) << "open";
  EXPECT_EQ(waiting.job.wait(), 0) << waiting.job.err();
}

TEST(Ps, JsonHasTheSame) {
  Waiting waiting;
  ASSERT_TRUE(waiting.until_two_wait());
  const auto job = job_of(ps({"--json"}), waiting.job.pid());
  EXPECT_EQ(job.at("world_size"), 3);
  EXPECT_EQ(job.at("failure"), nullptr);
  EXPECT_NE(job.at("program").get<std::string>().find("RankTwoStaysOut"), std::string::npos);
  ASSERT_EQ(job.at("ranks").size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    const auto& shown = job.at("ranks").at(static_cast<std::size_t>(rank));
    EXPECT_EQ(shown.at("rank"), rank);
    EXPECT_EQ(shown.at("step"), 7);
    EXPECT_EQ(shown.at("last_completed"), "barrier #1");
    EXPECT_EQ(shown.at("waits_in"), rank == 2 ? nlohmann::json(nullptr) : nlohmann::json("barrier #2"));
    EXPECT_TRUE(shown.at("heartbeat_s_ago").is_number());
    EXPECT_NE(read_file(fmt::format("/proc/{}/cmdline", shown.at("pid").get<int>())).find("RankTwoStaysOut"),
              std::string::npos);
  }
  // By the job's name, and by a worker's number.
  for (const std::string& name : {job.at("job").get<std::string>(), job.at("ranks").at(1).at("pid").dump()}) {
    const Listing listing = ps({"--json", name});
    EXPECT_EQ(nlohmann::json::parse(listing.out).at("jobs").size(), 1u) << listing.out;
  }
  std::ofstream(waiting.gate) << "open";
  EXPECT_EQ(waiting.job.wait(), 0) << waiting.job.err();
  EXPECT_EQ(job_of(ps({"--json"}), waiting.job.pid()), nullptr);
}

TEST(Ps, AJobThatIsNotThereIsSaid) {
  const Listing listing = ps({"no-such-job"});
  EXPECT_EQ(listing.exit_code, 1);
  EXPECT_EQ(listing.err, "paceline ps: there is no job no-such-job of yours on this host\n");
}

TEST(Ps, ACommandLineThatIsNoUtf8IsListedAsJson) {
  Job job(run_sh(1, "echo ready; exec sleep 1000 # \xff"));
  ASSERT_TRUE(job.says("ready")) << job.err();
  const Listing listing = ps({"--json"});
  EXPECT_EQ(listing.exit_code, 0) << listing.err;
  EXPECT_NE(job_of(listing, job.pid()), nullptr) << listing.out;
}

TEST(Ps, WhatOnlyLooksLikeAJobStatusIsPassedOver) {
  const UniqueFd fake(::memfd_create(JobStatus::kName, MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fake.get(), 1 << 20), 0);
  EXPECT_EQ(ps({}).exit_code, 0);
}

TEST(Ps, BadUseIsRefused) {
  EXPECT_EQ(ps({"--watch", "--json"}).exit_code, 64);
  EXPECT_EQ(ps({"--all"}).exit_code, 64);
}

TEST(Worker, DISABLED_RankTwoStaysOut) {
  const Comm comm = Comm::from_env();
  comm.set_step(7);
  comm.barrier();
  const bool opened = comm.rank() != 2 || eventually([] { return std::filesystem::exists(std::getenv("TEST_GATE")); });
  ASSERT_TRUE(opened);
  comm.barrier();
}

}  // namespace
}  // namespace paceline
