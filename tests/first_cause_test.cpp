// Jobs in which a worker throws, exits, disagrees or is killed, and such as the system has too little for: what is
// named as the cause, on all ranks and by the launcher. Workers are this very binary running one of the disabled Worker
// tests.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "job_worker.h"
#include "tests/launched_job.h"

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

// Fails where no memory cgroup can be made; board_test has both versions out of files.
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
