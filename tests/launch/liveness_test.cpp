// Jobs whose workers stop, hang, skip, die or only take long: who is named, on all ranks, and what is no failure.
// Workers are this very binary running one of the disabled Worker tests below.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/job_worker.h"
#include "tests/support/launched_job.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

// ---- Silence.

class Silence : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, Silence, testing::Values("shm", "tcp"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(Silence, OfAStoppedRankFailsTheJobOnAllRanksAndEndsIt) {
  Job job(run_worker(3, "ReducesForever", {"--silence", "1", "--transport", GetParam()}));
  const pid_t stopped = pid_printed(job, 1);
  ASSERT_GT(stopped, 0);
  ::kill(stopped, SIGSTOP);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(job.leaves_nothing());
  for (const int rank : {0, 2}) {
    const std::string heard =
        fmt::format("[rank {}] heard: [paceline E203 PEER_LOST] rank {}: rank 1 (host ", rank, rank);
    EXPECT_EQ(count(job.out(), heard), 1u) << job.out() << job.err();
  }
  EXPECT_EQ(count(job.out(), fmt::format("pid {}) sent no heartbeat for 1", stopped)), 2u) << job.out();
  EXPECT_EQ(count(job.out(), "it is stopped (state T"), 2u) << job.out();
  EXPECT_TRUE(contains(job.err(), "paceline: rank 1 failed first, after ")) << job.err();
  EXPECT_TRUE(contains(job.err(), "sent no heartbeat for 1")) << job.err();
  EXPECT_TRUE(contains(job.err(), "  [E203 PEER_LOST] host ")) << job.err();
  EXPECT_TRUE(contains(job.err(), "  hint: ")) << job.err();
}

TEST_P(Silence, AKilledRankIsNamedWithItsSignalOnAllRanks) {
  Job job(run_worker(3, "ReducesForever", {"--transport", GetParam()}));
  const pid_t killed = pid_printed(job, 1);
  ASSERT_GT(killed, 0);
  ::kill(killed, SIGSEGV);
  EXPECT_EQ(job.wait(), 128 + SIGSEGV);
  EXPECT_TRUE(job.leaves_nothing());
  for (const int rank : {0, 2}) {
    const std::string heard =
        fmt::format("[rank {}] heard: [paceline E201 PEER_LOST] rank {}: rank 1 (host ", rank, rank);
    EXPECT_EQ(count(job.out(), heard), 1u) << job.out() << job.err();
  }
  EXPECT_EQ(count(job.out(), fmt::format("pid {}) killed by signal 11 (SIGSEGV)", killed)), 2u) << job.out();
  EXPECT_TRUE(contains(job.err(), "  hint: a defect in the program")) << job.err();
}

TEST_P(Silence, ARankThatComputesAloneIsNoFailure) {
  const TemporaryFolder folder;
  const std::string gate = (folder.path / "gate").string();
  Job job(run_worker(3, "RankZeroComputesAlone",
                     {"--silence", "1", "--stuck", "1", "--transport", GetParam(), "--env", "TEST_GATE=" + gate}));
  ASSERT_TRUE(job.says("root suspect: rank 0 is at #1, user code after barrier #1, last seen "));
  EXPECT_TRUE(contains(job.err(), "while ranks 1-2 wait in #2\n")) << job.err();
  std::ofstream(gate) << "open";
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(count(job.err(), "STUCK"), 1u) << job.err();
}

TEST(Silences, OfZeroLetsAWorkerBeStoppedAndGoOn) {
  Job job(run_worker(2, "RankOneStopsItself", {"--silence", "0", "--stuck", "1"}));
  const pid_t stopped = pid_printed(job, 1);
  ASSERT_TRUE(job.says("root suspect: rank 1 "));
  EXPECT_TRUE(contains(job.err(), "stopped (T)")) << job.err();
  ::kill(stopped, SIGCONT);
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST(Silences, TooShortToTellAreRefused) {
  Job job(run_sh(1, "true", {"--silence", "0.3"}));
  EXPECT_EQ(job.wait(), 64);
  EXPECT_TRUE(contains(job.err(), "--silence: takes 0, or at least 1 second")) << job.err();
}

// ---- Hangs.

TEST(Hang, AMainThreadThatIsDeadlockedIsTheRootSuspectAndIsWaitedFor) {
  const TemporaryFolder folder;
  const std::string gate = (folder.path / "gate").string();
  Job job(run_worker(3, "RankTwoWaitsForAGate", {"--silence", "1", "--stuck", "1", "--env", "TEST_GATE=" + gate}));
  ASSERT_TRUE(job.says("root suspect: rank 2 is at #2, user code after barrier #2, last seen "));
  EXPECT_TRUE(contains(job.err(), "[E412 STUCK] no progress for 1 s")) << job.err();
  EXPECT_TRUE(contains(job.err(), "in barrier #3 since ")) << job.err();
  std::ofstream(gate) << "open";
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST(Hang, ARankThatSkipsACollectiveIsNamed) {
  Job job(run_worker(3, "RankTwoSkipsACollective", {"--stuck", "1"}));
  ASSERT_TRUE(job.says("rank 2 is at #41, user code after "));
  EXPECT_TRUE(contains(job.err(), "while ranks 0-1 wait in #42\n")) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_TRUE(contains(job.err(), "the last operations of each rank\n")) << job.err();
  EXPECT_TRUE(std::regex_search(job.err(), std::regex("waits since .* all_reduce #42 \\(float32 x 3, sum\\)")))
      << job.err();
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(Hang, ATimeoutIsFollowedByTheLastOperationsOfAllRanks) {
  Job job(run_worker(2, "RankOneSkipsACollective", {"--timeout", "1"}));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(contains(job.out(), "heard: [paceline E401 TIMEOUT] rank 0: rank 0 waited 1 s in all_reduce #42"))
      << job.out();
  EXPECT_TRUE(contains(job.err(), "[E401 TIMEOUT] host ")) << job.err();
  EXPECT_TRUE(contains(job.err(), "the last operations of each rank:\n  rank 0 (pid ")) << job.err();
  EXPECT_TRUE(std::regex_search(job.err(), std::regex("failed +all_reduce #42 "))) << job.err();
  EXPECT_TRUE(contains(job.err(), "all_reduce #41 ")) << job.err();
}

// ---- What workers do. Disabled, so that they run only as workers.

/// For longer than a silence may last, and until the test has read what it waits for.
void compute_until_the_gate_opens() {
  const Deadline silence(1200ms), patience(kPatience);
  while (!silence.passed() || !fs::exists(std::getenv("TEST_GATE"))) {
    if (patience.passed()) throw std::runtime_error("nobody opened the gate");
  }
}

TEST(Worker, DISABLED_ReducesForever) {
  ::signal(SIGSEGV, SIG_DFL);  // a sanitizer's would exit
  as_worker([](const Comm& comm) {
    for (;;) sum(comm, 1000);
  });
}

TEST(Worker, DISABLED_RankZeroComputesAlone) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    if (comm.rank() == 0) compute_until_the_gate_opens();
    comm.barrier();
  });
}

TEST(Worker, DISABLED_RankOneStopsItself) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    if (comm.rank() == 1) ::kill(::getpid(), SIGSTOP);
    comm.barrier();
  });
}

void wait_for_gate() {
  if (!eventually([] { return fs::exists(std::getenv("TEST_GATE")); }))
    throw std::runtime_error("nobody opened the gate");
}

TEST(Worker, DISABLED_RankTwoWaitsForAGate) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    comm.barrier();
    if (comm.rank() == 2) wait_for_gate();
    comm.barrier();
  });
}

void skip_a_collective(const Comm& comm, int who) {
  for (int step = 0; step < 41; ++step) sum(comm);
  if (comm.rank() != who) sum(comm);
  ::poll(nullptr, 0, -1);  // until a signal ends it
}

TEST(Worker, DISABLED_RankTwoSkipsACollective) {
  as_worker([](const Comm& comm) { skip_a_collective(comm, 2); });
}

TEST(Worker, DISABLED_RankOneSkipsACollective) {
  as_worker([](const Comm& comm) { skip_a_collective(comm, 1); });
}

}  // namespace
}  // namespace paceline
