// `paceline run` when workers fail, when signals come and when its own processes are killed: who is named as the cause,
// what the exit code is, and that no process survives. Workers are shell scripts, or this very binary running one of
// the disabled Worker tests below.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/store/store.h"
#include "tests/support/launched_job.h"

namespace paceline {
namespace {

// ---- Failures.

TEST(LauncherFailure, TheExitCodeIsThatOfTheFirstWorkerThatFailed) {
  Job job(run_sh(3, "if [ $RANK = 1 ]; then echo the reason >&2; exit 3; fi; sleep 1000", {"--grace", "0"}));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_NE(job.err().find("paceline: rank 1 failed first, after "), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("exited with code 3\n"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("    the reason\n"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("then ranks 0, 2 stopped by the launcher\n"), std::string::npos) << job.err();
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(LauncherFailure, AKilledWorkerIsNamedWithItsSignalAndNoInventedReason) {
  Job job(run_sh(2, "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 1000", {"--grace", "0"}));
  EXPECT_EQ(job.wait(), 137);
  EXPECT_NE(job.err().find("killed by signal 9 (SIGKILL)\n"), std::string::npos) << job.err();
  EXPECT_EQ(job.err().find("memory"), std::string::npos) << job.err();
}

TEST(LauncherFailure, OthersMayEndByThemselvesInTheGrace) {
  Job job(run_sh(2, "if [ $RANK = 1 ]; then exit 4; fi; sleep 0.3; echo finished", {"--grace", "60"}));
  EXPECT_EQ(job.wait(), 4);
  EXPECT_EQ(job.out(), "[rank 0] finished\n");
  EXPECT_EQ(job.err().find("then"), std::string::npos) << job.err();
}

TEST(LauncherFailure, AWorkerThatIgnoresSigtermIsKilled) {
  Job job(
      run_sh(2, "if [ $RANK = 1 ]; then exit 4; fi; trap '' TERM; sleep 1000 & wait; sleep 1000", {"--grace", "0"}));
  EXPECT_EQ(job.wait(), 4);
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(LauncherFailure, ARankThatOnlySawAPeerFailIsNotTheCause) {
  Job job(run_worker(2, "ReportsAPeerThenThePeerFails", {"--grace", "60"}));
  EXPECT_EQ(job.wait(), 7);
  EXPECT_NE(job.err().find("rank 1 failed first"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("then rank 0 exited with code 5 after E201 PEER_LOST"), std::string::npos) << job.err();
}

TEST(LauncherFailure, WhatARankReportedIsShown) {
  Job job(run_worker(1, "ReportsAMismatch"));
  EXPECT_EQ(job.wait(), 78);  // not what the worker made of it
  EXPECT_NE(job.err().find("it reported [E301 MISMATCH] sizes 3 and 4 differ"), std::string::npos) << job.err();
}

TEST(LauncherFailure, RanksThatWaitHearOfAKilledPeer) {
  Job job(run_worker(2, "WaitsForRankOneWhichDies", {"--grace", "60"}));
  EXPECT_EQ(job.wait(), 137);
  EXPECT_NE(job.out().find("heard: rank 1 killed by signal 9 (SIGKILL)"), std::string::npos) << job.out();
}

TEST(LauncherFailure, ARankThatLeavesBeforeJoiningFailsTheJob) {
  Job job(run_worker(2, "WaitsForRankOneWhichLeaves", {"--grace", "60"}));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_NE(job.err().find("rank 1 failed first"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("[E205 PEER_LOST]"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("exited with code 0 before it joined"), std::string::npos) << job.err();
  EXPECT_NE(job.out().find("heard: rank 1 exited with code 0 before it joined"), std::string::npos) << job.out();
}

TEST(LauncherFailure, WhatAKilledWorkerPrintedIsNotLost) {
  Job job(run_worker(1, "PrintsAndIsKilled"));
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(contains(job.out(), "[rank 0] the last line\n")) << job.out();
}

TEST(LauncherFailure, ALongLineOfStderrSaysThatItWasCut) {
  Job job(run_sh(1, "head -c 500 /dev/zero | tr '\\0' x >&2; echo >&2; exit 3"));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_TRUE(contains(job.err(), "    " + std::string(400, 'x') + "...\n")) << job.err();
}

// ---- Signals, and no process left behind.

AssertionResult says_twice(Job& job, const std::string& text) {
  return eventually([&] {
    job.read_some();
    return count(job.out(), text) == 2;
  });
}

TEST(LauncherSignals, CtrlCReachesEachWorkerOnce) {
  // A second SIGINT would run the trap again. It ends what sh waits for, or is about to wait for.
  Job job(run_sh(2, "trap 'echo interrupted; kill $!' INT; sleep 1000 & echo ready; wait; echo leaving; exit 0",
                 {"--grace", "60"}));
  ASSERT_TRUE(says_twice(job, "ready"));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_EQ(count(job.out(), "interrupted"), 2u) << job.out();
  EXPECT_EQ(count(job.out(), "leaving"), 2u) << job.out();
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(LauncherSignals, ASecondCtrlCKillsAtOnce) {
  Job job(run_sh(2, "trap 'echo deaf' INT; echo ready; while :; do sleep 0.05; done", {"--grace", "600"}));
  ASSERT_TRUE(says_twice(job, "ready"));
  job.signal(SIGINT);
  ASSERT_TRUE(says_twice(job, "deaf"));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(LauncherSignals, SigtermEndsTheJobWith143) {
  Job job(run_sh(2, "echo ready; sleep 1000"));
  ASSERT_TRUE(job.says("ready"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(LauncherSignals, AWorkerDeafToCtrlCGetsSigtermAfterTheGrace) {
  Job job(run_sh(1, "trap '' INT; echo ready; sleep 1000", {"--grace", "0.1"}));
  ASSERT_TRUE(job.says("ready"));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_TRUE(contains(job.err(),
                       "paceline: ended by signal 2 (Ctrl-C)\n  rank 0 had not ended within 0.1 s and was killed; "
                       "--grace SECONDS gives more time\n"))
      << job.err();
}

// How long it is by default shows without waiting for it: what is said while the workers are waited for.
TEST(LauncherSignals, AfterCtrlCOrSigtermWorkersGetHalfAMinuteToSave) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Job job(run_sh(2, "trap 'echo saving' INT TERM; echo ready; while :; do sleep 0.02; done"));
    ASSERT_TRUE(says_twice(job, "ready"));
    job.signal(signal);
    ASSERT_TRUE(says_twice(job, "saving"));
    const std::regex waited_for(fmt::format(
        "paceline: ranks 0-1 have not ended yet, and have 2\\d s more \\(--grace\\); a second {} kills them\n",
        signal == SIGINT ? "Ctrl-C" : "signal"));
    ASSERT_TRUE(eventually([&] {
      job.read_some();
      return std::regex_search(job.err(), waited_for);
    })) << job.err();
    job.signal(SIGINT);
    EXPECT_EQ(job.wait(), 128 + signal);
    EXPECT_TRUE(contains(job.err(), "  ranks 0-1 had not ended and were killed when a second signal came\n"))
        << job.err();
    EXPECT_TRUE(job.leaves_nothing());
  }
}

TEST(LauncherSignals, NobodyIsSaidToBeKilledWhereAllEndByThemselves) {
  Job job(run_sh(2, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"));
  ASSERT_TRUE(says_twice(job, "ready"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_TRUE(job.err().ends_with("paceline: ended by signal 15 (SIGTERM)\n")) << job.err();
}

TEST(LauncherSignals, UserSignalsGoToTheWorkersAndTheJobGoesOn) {
  for (const auto& [signal, name] : {std::pair{SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}}) {
    const TemporaryFolder folder;
    const std::string go = (folder.path / "go").string();
    Job job(
        run_sh(2, fmt::format("trap 'echo warned' {}; echo ready; until [ -e {} ]; do sleep 0.02; done", name, go)));
    ASSERT_TRUE(says_twice(job, "ready"));
    job.signal(signal);
    EXPECT_TRUE(says_twice(job, "warned"));
    std::ofstream(go) << "";
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_EQ(count(job.out(), "warned"), 2u) << job.out();
    EXPECT_TRUE(contains(job.err(), fmt::format("paceline: SIG{} goes to all workers\n", name))) << job.err();
  }
}

TEST(LauncherSignals, AWorkerThatDoesNotHandleAUserSignalIsToldFromADefect) {
  Job job(run_sh(1, "echo ready; exec sleep 1000"));
  ASSERT_TRUE(job.says("ready"));
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait(), 128 + SIGUSR1);
  EXPECT_TRUE(contains(job.err(),
                       "hint: a signal that came to the launcher goes to all workers, and ends a program that "
                       "does not handle it"))
      << job.err();
}

/// Workers whose children are in the background, in another session, and orphaned.
constexpr const char* kFamily =
    "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; echo ready; ";

std::size_t family_processes(int workers) { return 2 + static_cast<std::size_t>(workers) * 6; }

AssertionResult all_started(Job& job, int workers) {
  return eventually([&] {
    job.read_some();
    return count(job.out(), "ready") == static_cast<std::size_t>(workers) &&
           job.processes() == family_processes(workers);
  });
}

TEST(LauncherCleanup, NothingSurvivesAJobThatSucceeds) {
  Job job(run_sh(2, std::string(kFamily) + "exit 0"));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(LauncherCleanup, NothingSurvivesAFailureOrCtrlC) {
  Job failing(run_sh(2, std::string(kFamily) + "test $RANK = 1 && exit 3; wait", {"--grace", "0"}));
  EXPECT_EQ(failing.wait(), 3);
  EXPECT_TRUE(failing.leaves_nothing());
  Job interrupted(run_sh(2, std::string(kFamily) + "wait", {"--grace", "0"}));
  ASSERT_TRUE(all_started(interrupted, 2));
  interrupted.signal(SIGINT);
  EXPECT_EQ(interrupted.wait(), 130);
  EXPECT_TRUE(interrupted.leaves_nothing());
}

TEST(LauncherCleanup, NothingSurvivesWhenTheLauncherIsKilled) {
  Job job(run_sh(2, std::string(kFamily) + "wait"));
  ASSERT_TRUE(all_started(job, 2)) << job.processes();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 1000 + SIGKILL);
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(LauncherCleanup, NothingSurvivesWhenTheSupervisorIsKilled) {
  Job job(run_sh(2, std::string(kFamily) + "wait"));
  ASSERT_TRUE(all_started(job, 2)) << job.processes();
  ASSERT_GT(job.supervisor(), 0);
  ::kill(job.supervisor(), SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_TRUE(job.leaves_nothing());
  EXPECT_NE(job.err().find("killed by signal 9 (SIGKILL)"), std::string::npos) << job.err();
}

TEST(LauncherCleanup, NothingSurvivesWhenTheLauncherIsKilledWhileItStarts) {
  for (int round = 0; round < 20; ++round) {
    Job job(run_sh(3, std::string(kFamily) + "wait"));
    ASSERT_TRUE(eventually([&] { return job.processes() > static_cast<std::size_t>(round % 8); }));
    job.signal(SIGKILL);
    EXPECT_EQ(job.wait(), 1000 + SIGKILL);
    EXPECT_TRUE(job.leaves_nothing());
  }
}

TEST(LauncherCleanup, NothingSurvivesWhenTheLauncherIsKilledWhileNobodyReadsTheOutput) {
  Job job(run_sh(2, "echo ready; while :; do echo more than anyone reads; done"));
  ASSERT_TRUE(eventually([&] { return job.processes() == 4; }));
  job.signal(SIGKILL);
  // leaves_nothing() does not read, so the pipe stays full.
  EXPECT_TRUE(job.leaves_nothing());
}

// ---- Where /proc is not our own.

/// Starts a job after `first`, and says whether what the worker left, of which it wrote the number to $LEFT, and the
/// stranger that `first` may have started live afterwards.
Setup in_namespace(const std::vector<std::string>& how, const std::string& first, const std::string& file) {
  Setup setup{.environment = {{"LEFT", file}}, .within = how};
  const std::string script = first +
                             "\n\"$@\"; code=$?; kill -0 $(cat $LEFT) 2>/dev/null && echo something is left; "
                             "[ -z \"$stranger\" ] || kill -0 $stranger || echo the stranger is gone; exit $code";
  setup.within.insert(setup.within.end(), {"sh", "-c", script, "sh"});
  return setup;
}

const std::string kLeavesSomething = "sleep 1000 & echo $! > $LEFT; echo worked";

TEST(ForeignProc, AJobInAPidNamespaceWithoutItsProcEndsWellAndLeavesNothing) {
  const TemporaryFolder folder;
  Job job(run_sh(1, kLeavesSomething),
          in_namespace({"/usr/bin/unshare", "-pf", "--kill-child"}, "sleep 1000 & stranger=$!", folder.path / "left"));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[rank 0] worked\n");
  EXPECT_EQ(job.err(), "");
}

TEST(ForeignProc, AFailedJobThereEndsItsWorkersAndNoStranger) {
  const TemporaryFolder folder;
  Job job(run_sh(2, "[ $RANK = 0 ] || exit 3; " + kLeavesSomething + "; sleep 1000", {"--grace", "0"}),
          in_namespace({"/usr/bin/unshare", "-pf", "--kill-child"}, "sleep 1000 & stranger=$!", folder.path / "left"));
  EXPECT_EQ(job.wait(), 3) << job.err();
  EXPECT_FALSE(contains(job.out(), "left")) << job.out();
  EXPECT_FALSE(contains(job.out(), "stranger")) << job.out();
  EXPECT_TRUE(contains(job.err(), "rank 1 failed first")) << job.err();
  EXPECT_FALSE(contains(job.err(), "could not")) << job.err();
}

TEST(ForeignProc, AKilledSupervisorTakesItsWorkersAndTheirGroupsWithIt) {
  const TemporaryFolder folder;
  Job job(run_sh(1, "kill -9 $PPID; " + kLeavesSomething + "; sleep 1000"),
          in_namespace({"/usr/bin/unshare", "-pf", "--kill-child"}, "", folder.path / "left"));
  EXPECT_EQ(job.wait(), 137) << job.err();
  EXPECT_FALSE(contains(job.out(), "left")) << job.out();
}

// Sanitizers themselves cannot do without /proc.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ForeignProc, WithoutAnyProcAJobEndsWellAndLeavesNothing) {
  const TemporaryFolder folder;
  Job job(run_sh(1, kLeavesSomething),
          in_namespace({"/usr/bin/unshare", "-m"}, "mount -t tmpfs none /proc", folder.path / "left"));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[rank 0] worked\n");
  EXPECT_EQ(job.err(), "");
  EXPECT_TRUE(job.leaves_nothing());
}
#endif

// ---- What workers do in the tests above. Disabled, so that they run only as workers.

struct Rank {
  int rank = std::atoi(std::getenv("RANK"));
  std::shared_ptr<Store> store = connect_store(std::getenv("PACELINE_STORE"), Deadline(kPatience));
};

[[noreturn]] void end(int code) {
  std::fflush(nullptr);
  ::_exit(code);
}

TEST(Worker, DISABLED_ReportsAMismatch) {
  Rank self;
  self.store->fail(self.rank, {ErrorCode::Mismatch, "sizes 3 and 4 differ"});
  end(9);
}

TEST(Worker, DISABLED_ReportsAPeerThenThePeerFails) {
  Rank self;
  if (self.rank == 0) {
    self.store->get("peer is ready", Deadline(kPatience));
    self.store->set("pid", std::to_string(::getpid()));
    self.store->get("pid is known", Deadline(kPatience));
    self.store->fail(0, {ErrorCode::PeerLost, "rank 1 is gone", 0, 1, Cause::Consequence});
    end(5);
  }
  self.store->set("peer is ready", "");
  const int pid = std::stoi(self.store->get("pid", Deadline(kPatience)));
  self.store->set("pid is known", "");
  // Gone, not a zombie: the launcher has seen it end.
  const bool gone = static_cast<bool>(eventually([&] { return ::kill(pid, 0) != 0; }));
  end(gone ? 7 : 1);
}

TEST(Worker, DISABLED_PrintsAndIsKilled) {
  // As new as a program's, which this one has printed to.
  ASSERT_NE(std::freopen("/proc/self/fd/1", "w", stdout), nullptr);
  const Comm comm = Comm::from_env();
  std::printf("the last line\n");
  ::raise(SIGKILL);
}

void wait_for_rank_one(Rank& self) {
  try {
    self.store->get("address/1", Deadline(kPatience));
  } catch (const Error& error) {
    fmt::print("heard: {}\n", error.message());
    self.store->fail(0, error);
    end(5);
  }
}

TEST(Worker, DISABLED_WaitsForRankOneWhichDies) {
  Rank self;
  if (self.rank == 0) wait_for_rank_one(self);
  ::raise(SIGKILL);
}

TEST(Worker, DISABLED_WaitsForRankOneWhichLeaves) {
  Rank self;
  if (self.rank == 0) wait_for_rank_one(self);
  end(0);
}

}  // namespace
}  // namespace paceline
