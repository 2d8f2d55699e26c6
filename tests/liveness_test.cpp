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
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include "paceline/comm/comm.h"
#include "tests/launched_job.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The pid that `rank` printed as "pid P".
pid_t pid_of(Job& job, int rank) {
  const std::regex line(fmt::format("\\[rank {}\\] pid (\\d+)\n", rank));
  std::smatch match;
  const auto found = eventually([&] {
    job.read_some();
    return std::regex_search(job.out(), match, line);
  });
  return found ? std::stoi(match[1]) : 0;
}

// ---- Silence.

class Silence : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, Silence, testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Silence, OfAStoppedRankFailsTheJobOnAllRanksAndEndsIt) {
  Job job(run_worker(3, "ReducesForever", {"--silence", "2", "--transport", GetParam()}));
  const pid_t stopped = pid_of(job, 1);
  ASSERT_GT(stopped, 0);
  ::kill(stopped, SIGSTOP);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(job.leaves_nothing());
  for (const int rank : {0, 2}) {
    const std::string heard =
        fmt::format("[rank {}] heard: [paceline E203 PEER_LOST] rank {}: rank 1 (host ", rank, rank);
    EXPECT_EQ(count(job.out(), heard), 1u) << job.out() << job.err();
  }
  EXPECT_EQ(count(job.out(), fmt::format("pid {}) sent no heartbeat for 2", stopped)), 2u) << job.out();
  EXPECT_EQ(count(job.out(), "it is stopped (state T"), 2u) << job.out();
  EXPECT_TRUE(contains(job.err(), "paceline: rank 1 failed first, after ")) << job.err();
  EXPECT_TRUE(contains(job.err(), "sent no heartbeat for 2")) << job.err();
  EXPECT_TRUE(contains(job.err(), "  [E203 PEER_LOST] host ")) << job.err();
  EXPECT_TRUE(contains(job.err(), "  hint: ")) << job.err();
}

TEST_P(Silence, AKilledRankIsNamedWithItsSignalOnAllRanks) {
  Job job(run_worker(3, "ReducesForever", {"--transport", GetParam()}));
  const pid_t killed = pid_of(job, 1);
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
  Job job(run_worker(3, "RankZeroComputesAlone", {"--silence", "1", "--stuck", "1", "--transport", GetParam()}));
  ASSERT_TRUE(job.says("root suspect: rank 0 is at #1, user code after barrier #1, last seen "));
  EXPECT_TRUE(contains(job.err(), "while ranks 1-2 wait in #2\n")) << job.err();
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(count(job.err(), "STUCK"), 1u) << job.err();
}

TEST(Silences, OfZeroLetsAWorkerBeStoppedAndGoOn) {
  Job job(run_worker(2, "RankOneStopsItself", {"--silence", "0", "--stuck", "1"}));
  const pid_t stopped = pid_of(job, 1);
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

// ---- First causes.

TEST(FirstCause, AnExceptionIsWhatAllRanksThrow) {
  Job job(run_worker(3, "RankOneThrows"));
  EXPECT_EQ(job.wait(), 1);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(
        count(job.out(), fmt::format("[rank {}] heard: [paceline E501 ABORTED] rank {}: rank 1 gave up: the disk is "
                                     "on fire\n",
                                     rank, rank)),
        1u)
        << job.out();
  }
  EXPECT_TRUE(contains(job.err(), "rank 1 failed first")) << job.err();
}

TEST(FirstCause, DisagreementExitsWith78) {
  Job job(run_worker(2, "RanksDisagree"));
  EXPECT_EQ(job.wait(), 78);
  EXPECT_EQ(count(job.out(), "heard: [paceline E301 MISMATCH] rank "), 2u) << job.out();
  EXPECT_TRUE(contains(job.err(), "[E301 MISMATCH] host ")) << job.err();
}

TEST(FirstCause, AnExitCodeWithoutAWordIsNamed) {
  Job job(run_worker(2, "RankOneExitsWithThree"));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_TRUE(contains(job.out(), "heard: [paceline E207 PEER_LOST] rank 0: rank 1 (host ")) << job.out();
  EXPECT_TRUE(contains(job.out(), "exited with code 3, after barrier #1")) << job.out();
}

TEST(FirstCause, AnOutOfMemoryKillIsToldFromTheCgroup) {
  // The memory cgroup of version 1, where this machine has one that may be written to; MemoryGroup's own test has both.
  const fs::path group = fs::path("/sys/fs/cgroup/memory") / fmt::format("paceline-test-{}", ::getpid());
  std::error_code none;
  if (!fs::create_directory(group, none)) return;
  std::ofstream(group / "memory.limit_in_bytes") << (64 << 20) << std::endl;
  {
    Job job(run_worker(2, "RankOneUsesUpMemory"), {.cgroup = group.string()});
    EXPECT_EQ(job.wait(), 128 + SIGKILL);
    EXPECT_TRUE(contains(job.out(), "heard: [paceline E206 PEER_LOST] rank 0: rank 1 (host "))
        << job.out() << job.err();
    EXPECT_TRUE(contains(job.err(), "out of memory (the cgroup's oom_kill rose from 0 to 1, limit 64.0 MiB)"))
        << job.err();
    EXPECT_TRUE(contains(job.err(), "hint: a smaller batch needs less memory")) << job.err();
    EXPECT_TRUE(job.leaves_nothing());
  }
  EXPECT_TRUE(eventually([&] { return fs::remove(group, none) || !fs::exists(group); }));
}

// ---- Limits of the system.

TEST(Limits, TooFewOpenFilesAreSaidAtTheStartWithTheNumberNeeded) {
  Job job(run_sh(16, "true"), {.open_files = 64});
  EXPECT_EQ(job.wait(), 70);
  EXPECT_TRUE(contains(job.err(),
                       "[paceline E602 SYSTEM] 16 workers need 128 open files each, but the limit is 64: raise "
                       "it with `ulimit -Hn 128`"))
      << job.err();
  Job enough(run_worker(4, "MeetsAndEnds"), {.open_files = 64});
  EXPECT_EQ(enough.wait(), 0) << enough.err();
}

TEST(Limits, ATinyDevShmDoesNotMatter) {
  const std::string worker =
      fmt::format("exec {} --gtest_also_run_disabled_tests --gtest_filter=Worker.DISABLED_MeetsAndEnds",
                  fs::read_symlink("/proc/self/exe").string());
  Job job(run_sh(2, "unshare -m sh -c 'mount -t tmpfs -o size=1m none /dev/shm && " + worker + "'"));
  EXPECT_EQ(job.wait(), 0) << job.err() << job.out();
}

// ---- What workers do. Disabled, so that they run only as workers.

void as_worker(const std::function<void(const Comm&)>& body) {
  int code = 0;
  try {
    const Comm comm = Comm::from_env();
    fmt::print("pid {}\n", ::getpid());
    std::fflush(stdout);
    try {
      body(comm);
    } catch (const std::exception& error) {
      comm.abort(error.what());
      throw;
    }
  } catch (const std::exception& error) {
    fmt::print("heard: {}\n", error.what());
    code = 1;
  }
  std::fflush(nullptr);
  ::_exit(code);
}

void sum(const Comm& comm, std::size_t count = 3) {
  std::vector<float> data(count, 1);
  comm.all_reduce<float>(data);
}

void compute_for(Nanoseconds duration) {
  for (const Deadline end(duration); !end.passed();) continue;
}

TEST(Worker, DISABLED_ReducesForever) {
  as_worker([](const Comm& comm) {
    for (;;) sum(comm, 1000);
  });
}

TEST(Worker, DISABLED_RankZeroComputesAlone) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    if (comm.rank() == 0) compute_for(3s);
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

TEST(Worker, DISABLED_RankTwoWaitsForAGate) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    comm.barrier();
    if (comm.rank() == 2) EXPECT_TRUE(eventually([] { return fs::exists(std::getenv("TEST_GATE")); }));
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

TEST(Worker, DISABLED_RankOneThrows) {
  as_worker([](const Comm& comm) {
    for (int step = 0; step < 5; ++step) sum(comm);
    if (comm.rank() == 1) throw std::runtime_error("the disk is on fire");
    for (;;) sum(comm);
  });
}

TEST(Worker, DISABLED_RanksDisagree) {
  as_worker([](const Comm& comm) { sum(comm, comm.rank() == 0 ? 3 : 4); });
}

TEST(Worker, DISABLED_RankOneExitsWithThree) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    if (comm.rank() == 1) ::_exit(3);
    comm.barrier();
  });
}

TEST(Worker, DISABLED_RankOneUsesUpMemory) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    constexpr std::size_t kMiB = 1 << 20;
    for (std::vector<std::vector<char>> hoard; comm.rank() == 1;) hoard.emplace_back(kMiB, 'x');
    comm.barrier();
  });
}

TEST(Worker, DISABLED_MeetsAndEnds) {
  as_worker([](const Comm& comm) { sum(comm, 100'000); });
}

}  // namespace
}  // namespace paceline
