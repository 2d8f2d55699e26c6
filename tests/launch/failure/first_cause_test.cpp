// Jobs in which a worker throws, exits, disagrees or is killed, and such as the system has too little for: what is
// named as the cause, on all ranks and by the launcher. Workers are this very binary running one of the disabled Worker
// tests.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/job_worker.h"
#include "tests/support/launched_job.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

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

TEST(FirstCause, ARankThatLeavesItsCommunicatorWithSuccessIsTheCauseWhereOthersWait) {
  for (const char* how : {"exit", "_exit", "exec"}) {
    for (const char* transport : {"shm", "tcp"}) {
      Job job(run_worker(3, "RankTwoLeavesWithSuccess", {"--transport", transport}),
              {.environment = {{"TEST_HOW", how}}});
      EXPECT_EQ(job.wait(), 1) << how;
      EXPECT_TRUE(contains(job.err(), "rank 2 failed first")) << how << ": " << job.err();
      EXPECT_TRUE(contains(job.err(), "exited with code 0 while it was in a communicator")) << job.err();
      EXPECT_TRUE(contains(job.err(), "[E202 PEER_LOST]")) << job.err();
    }
  }
}

// Nobody waits for it.
TEST(FirstCause, LeavingACommunicatorWithSuccessIsNoFailureByItself) {
  Job job(run_worker(2, "AllLeaveWithSuccess"));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.err(), "");
}

TEST(FirstCause, ARankThatHasAnotherNumberInItsGroupIsTheCauseToo) {
  Job job(run_worker(3, "RankOneGivesUpInAGroup"));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(contains(job.err(), "rank 1 failed first")) << job.err();
  EXPECT_TRUE(contains(job.err(), "[E501 ABORTED] host ")) << job.err();
}

TEST(FirstCause, AReasonThatNamesALostPeerIsStillItsOwn) {
  Job job(run_worker(2, "RankOneGivesUpOverWords"));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(contains(job.err(), "rank 1 failed first")) << job.err();
  EXPECT_TRUE(contains(job.err(), "[E501 ABORTED] host ")) << job.err();
}

TEST(FirstCause, AnUncaughtErrorIsToldByItsNumberAndNotAsADefect) {
  Job job(run_worker(3, "AnErrorReachesTheEndOfMain"));
  EXPECT_EQ(job.wait(), 128 + SIGABRT);
  EXPECT_TRUE(contains(job.err(), "rank 1 failed first")) << job.err();
  EXPECT_TRUE(contains(job.err(), "[E502 ABORTED] host ")) << job.err();
  EXPECT_TRUE(contains(job.err(), "s: rank 1's gradient held NaN (nothing caught the error: killed by signal 6"))
      << job.err();
  EXPECT_FALSE(contains(job.err(), "defect")) << job.err();
}

TEST(FirstCause, AnUncaughtExceptionOfAnotherKindIsNoDefectEither) {
  Job job(run_worker(1, "AnExceptionReachesTheEndOfMain"));
  EXPECT_EQ(job.wait(), 128 + SIGABRT);
  EXPECT_TRUE(contains(job.err(), "hint: nothing caught an exception, whose text stands below")) << job.err();
  EXPECT_FALSE(contains(job.err(), "defect")) << job.err();
}

TEST(FirstCause, TheFramesOfATraceAreNoLastWords) {
  Job job(run_sh(1,
                 "echo the shapes differ >&2; echo 'Exception raised from f at f.cpp:3 (most recent call first):' "
                 ">&2; for i in $(seq 30); do echo \"frame #$i: f() + 0x3 (0x7f in /lib/libc10.so)\" >&2; done; "
                 "echo >&2; exit 3"));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_TRUE(contains(job.err(), "the end of its stderr:\n    the shapes differ\n")) << job.err();
  EXPECT_TRUE(contains(job.err(), "[rank 0] frame #30: ")) << "a worker's output is its own: " << job.err();
  EXPECT_FALSE(contains(job.err(), "    frame #")) << job.err();
}

TEST(FirstCause, AReasonIsToldWithoutTheFramesOfATrace) {
  Job job(run_worker(2, "RankOneGivesUpWithATrace"));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(
      contains(job.out(), "[rank 0] heard: [paceline E501 ABORTED] rank 0: rank 1 gave up: the shapes differ\n"))
      << job.out();
  EXPECT_TRUE(contains(job.err(), "it reported [E501 ABORTED] rank 1 gave up: the shapes differ\n")) << job.err();
}

TEST(FirstCause, AnExitCodeWithoutAWordIsNamed) {
  Job job(run_worker(2, "RankOneExitsWithThree"));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_TRUE(contains(job.out(), "heard: [paceline E207 PEER_LOST] rank 0: rank 1 (host ")) << job.out();
  EXPECT_TRUE(contains(job.out(), "exited with code 3, after barrier #1")) << job.out();
}

/// A memory cgroup with this limit, of version 1 or 2, whichever the machine has. Goes with this object.
struct MemoryCgroup {
  explicit MemoryCgroup(std::size_t bytes) {
    const fs::path mount = "/sys/fs/cgroup", v1 = mount / "memory";
    const bool is_v1 = fs::exists(v1 / "memory.limit_in_bytes");
    if (!is_v1) std::ofstream(mount / "cgroup.subtree_control") << "+memory" << std::endl;
    path = (is_v1 ? v1 : mount) / fmt::format("paceline-test-{}", ::getpid());
    fs::create_directory(path);
    std::ofstream limit(path / (is_v1 ? "memory.limit_in_bytes" : "memory.max"));
    if (!(limit << bytes << std::flush)) throw std::runtime_error("no limit can be set in " + path.string());
    if (!is_v1) std::ofstream(path / "memory.swap.max") << 0 << std::endl;
  }
  /// What was in it may take a moment to leave.
  ~MemoryCgroup() {
    std::error_code busy;
    EXPECT_TRUE(eventually([&] { return fs::remove(path, busy) || !fs::exists(path); }));
  }
  fs::path path;
};

// Fails where no memory cgroup can be made; watch_test has both versions out of files.
TEST(FirstCause, AnOutOfMemoryKillIsToldFromTheCgroup) {
  const MemoryCgroup group(std::size_t{512} << 20);
  Job job(run_worker(2, "RankOneUsesUpMemory"), {.cgroup = group.path.string()});
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(contains(job.out(), "heard: [paceline E206 PEER_LOST] rank 0: rank 1 (host ")) << job.out() << job.err();
  EXPECT_TRUE(contains(job.err(), "out of memory (the cgroup's oom_kill rose from 0 to 1, limit 512.0 MiB)"))
      << job.err();
  EXPECT_TRUE(contains(job.err(), "hint: a smaller batch needs less memory")) << job.err();
  EXPECT_TRUE(job.leaves_nothing());
}

// ---- Scripts between the launcher and the worker.

/// The worker, as a script has it.
std::string in_script(const std::string& test) {
  return fmt::format("{} --gtest_also_run_disabled_tests --gtest_filter=Worker.DISABLED_{}",
                     fs::read_symlink("/proc/self/exe").string(), test);
}

TEST(Script, ThatEndsInAPipeDoesNotHideThatItsRankDied) {
  Job job(run_sh(2, in_script("RankOneDiesLast") + " | cat"));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(contains(job.err(), "rank 1 failed first")) << job.err();
  EXPECT_TRUE(contains(job.err(), "died in its communicator, while what started it exited with code 0")) << job.err();
  EXPECT_TRUE(contains(job.err(), "[E201 PEER_LOST] host ")) << job.err();
}

TEST(Script, ThatEndsInAPipeDoesNotHideAnExitCode) {
  Job job(run_sh(2, in_script("RankOneFailsAndExitsWith5") + " | cat"));
  EXPECT_EQ(job.wait(), 5);
  EXPECT_TRUE(contains(job.err(), "rank 1 failed first")) << job.err();
  EXPECT_TRUE(contains(job.err(), "exited with code 5, though what started it exited with code 0")) << job.err();
}

TEST(Script, ThatEndsInAPipeMayHaveAWorkerThatEndsByExit) {
  Job job(run_sh(2, in_script("ExitsInItsCommunicator") + " | cat"));
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST(Script, MayIgnoreAnExitCodeThatIsNoFailure) {
  Job job(run_sh(2, in_script("EndsWithFive") + " || true"));
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST(Script, MayStartAnotherWorkerAfterOneThatDied) {
  Job job(run_sh(1, in_script("RankZeroDies") + "; " + in_script("MeetsAndEnds") + " | cat"));
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST(Script, ThatExitsWith128AndASignalTellsTheSignal) {
  Job job(run_sh(2, in_script("RankOneDiesLast") + "; exit $?"));
  EXPECT_EQ(job.wait(), 128 + SIGSEGV);
  EXPECT_TRUE(contains(job.err(), "killed by signal 11 (SIGSEGV), as exit code 139 of what started it says"))
      << job.err();
  EXPECT_TRUE(contains(job.err(), "[E201 PEER_LOST] host ")) << job.err();
  EXPECT_TRUE(contains(job.err(), "hint: a defect in the program")) << job.err();
}

TEST(Script, AWorkersOwnExitCodeIsNoSignal) {
  Job job(run_worker(1, "ExitsWith139"));
  EXPECT_EQ(job.wait(), 139);
  EXPECT_TRUE(contains(job.err(), "s: exited with code 139\n")) << job.err();
}

TEST(Script, DoesNotHideThatMemoryRanOut) {
  const MemoryCgroup group(std::size_t{512} << 20);
  Job job(run_sh(2, in_script("RankOneUsesUpMemory") + "; exit $?"), {.cgroup = group.path.string()});
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(contains(job.err(), "[E206 PEER_LOST] host ")) << job.err();
  EXPECT_TRUE(contains(job.err(), "out of memory (the cgroup's oom_kill rose from 0 to 1")) << job.err();
}

// ---- Ranks that wait for each other.

TEST(Standstill, RanksThatWaitInDifferentCommunicatorsAreEndedAndTold) {
  Job job(run_worker(2, "RanksWaitInDifferentCommunicators", {"--stuck", "0.5"}));
  EXPECT_EQ(job.wait(), 78);
  EXPECT_EQ(count(job.out(), "heard: [paceline E305 MISMATCH] rank "), 2u) << job.out();
  EXPECT_TRUE(contains(job.err(), "all ranks wait for each other")) << job.err();
  EXPECT_TRUE(
      contains(job.err(), "rank 0 waits in barrier #1 of 'world/0.0', rank 1 waits in barrier #1 of 'world/1.0'"))
      << job.err();
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

TEST(Worker, DISABLED_RankOneThrows) {
  as_worker([](const Comm& comm) {
    for (int step = 0; step < 5; ++step) sum(comm);
    if (comm.rank() == 1) throw std::runtime_error("the disk is on fire");
    for (;;) sum(comm);
  });
}

[[noreturn]] void reach_the_end_of_main(const std::function<void(const Comm&)>& body) {
  try {
    body(Comm::from_env());
  } catch (...) {
    std::terminate();  // as main() does; the test framework would catch it
  }
  ::_exit(0);
}

TEST(Worker, DISABLED_AnErrorReachesTheEndOfMain) {
  reach_the_end_of_main([](const Comm& comm) {
    comm.barrier();
    comm.fail({Fault::NotFinite, "rank 1's gradient held NaN", comm.rank(), 1});
  });
}

TEST(Worker, DISABLED_AnExceptionReachesTheEndOfMain) {
  reach_the_end_of_main([](const Comm&) { throw std::runtime_error("the disk is on fire"); });
}

TEST(Worker, DISABLED_RankTwoLeavesWithSuccess) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    const std::string how = std::getenv("TEST_HOW");
    if (comm.rank() == 2 && how == "exit") std::exit(0);
    if (comm.rank() == 2 && how == "_exit") ::_exit(0);
    if (comm.rank() == 2) ::execl("/bin/true", "true", nullptr);
    for (;;) sum(comm);
  });
}

TEST(Worker, DISABLED_AllLeaveWithSuccess) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    ::_exit(0);
  });
}

TEST(Worker, DISABLED_RankOneGivesUpInAGroup) {
  as_worker([](const Comm& comm) {
    const Comm group = comm.split(0, -comm.rank());
    group.barrier();
    if (comm.rank() == 1) {
      group.abort("the disk is on fire");
      ::_exit(1);
    }
    for (;;) sum(group);
  });
}

TEST(Worker, DISABLED_RankOneGivesUpOverWords) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    if (comm.rank() == 1) comm.fail({ErrorCode::Aborted, "the file of rank 0 is lost", 1, 1});
    for (;;) sum(comm);
  });
}

TEST(Worker, DISABLED_RankOneGivesUpWithATrace) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    if (comm.rank() == 1) {
      throw std::runtime_error(
          "the shapes differ\nException raised from f at f.cpp:3 (most recent call first):\n"
          "frame #0: f() + 0x3 (0x7f in /lib/libc10.so)\n");
    }
    for (;;) sum(comm);
  });
}

[[noreturn]] void die() {
  ::signal(SIGSEGV, SIG_DFL);
  ::raise(SIGSEGV);
  ::_exit(1);
}

TEST(Worker, DISABLED_RankOneDiesLast) {
  const Comm comm = Comm::from_env();
  comm.barrier();
  if (comm.rank() == 1) die();  // nobody waits for it any more
}

TEST(Worker, DISABLED_RankOneFailsAndExitsWith5) {
  try {
    const Comm comm = Comm::from_env();
    if (comm.rank() == 1) comm.fail({ErrorCode::Corrupt, "a page is torn", 1, 1});
    for (;;) sum(comm);
  } catch (const Error&) {
    std::exit(5);
  }
}

TEST(Worker, DISABLED_RankZeroDies) {
  const Comm comm = Comm::from_env();
  die();
}

TEST(Worker, DISABLED_ExitsInItsCommunicator) {
  const Comm comm = Comm::from_env();
  comm.barrier();
  comm.barrier();
  std::exit(0);
}

TEST(Worker, DISABLED_EndsWithFive) {
  { Comm::from_env().barrier(); }
  std::exit(5);
}

TEST(Worker, DISABLED_ExitsWith139) {
  { Comm::from_env(); }
  std::exit(139);
}

TEST(Worker, DISABLED_RanksWaitInDifferentCommunicators) {
  as_worker([](const Comm& comm) {
    const Comm model = comm.duplicate(), evaluation = comm.duplicate();
    (comm.rank() == 0 ? model : evaluation).barrier();
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
