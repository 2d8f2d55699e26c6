// Jobs of several launchers that have met over loopback: that one failure anywhere ends all with the same cause, and
// that one terminal is enough for all of them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/net/secret.h"
#include "tests/support/launched_nodes.h"

namespace paceline {
namespace {

// ---- One job, one end.

/// Two nodes with two workers each, which have all started. In `script`, `go` waits for that.
struct TwoNodes {
  /// Workers do `setup`, say that they are ready, and go on with `script`.
  explicit TwoNodes(const std::string& script, const Words& options = {}, const std::string& setup = "true")
      : zero(run_sh(2, with_go(setup, script), coordinator(2, options))),
        one(run_sh(2, with_go(setup, script), node(1, 2, rendezvous_of(zero), options))) {
    const auto started = eventually([&] {
      zero.read_some();
      one.read_some();
      return count(zero.out(), "ready") == 2 && count(one.out(), "ready") == 2;
    });
    if (!started) throw std::runtime_error("not all workers started: " + zero.err() + one.err());
    folder.file("go", "", 0600);
  }
  std::string with_go(const std::string& setup, const std::string& script) const {
    return fmt::format("go() {{ until [ -e {} ]; do sleep 0.02; done; }}; {}; echo ready; {}",
                       (folder.path / "go").string(), setup, script);
  }
  TemporaryFolder folder;
  Job zero, one;
};

TEST(HostsFailure, AWorkersExitEndsAllNodesWithItsCodeAndItsLastWords) {
  TwoNodes job("if [ $RANK = 3 ]; then go; echo the reason >&2; exit 9; fi; sleep 1000", {"--grace", "0"});
  EXPECT_EQ(job.zero.wait(), 9) << job.zero.err();
  EXPECT_EQ(job.one.wait(), 9) << job.one.err();
  EXPECT_TRUE(contains(job.zero.err(), "paceline: rank 3 on node 1 (host ")) << job.zero.err();
  EXPECT_TRUE(contains(job.zero.err(), "exited with code 9\n")) << job.zero.err();
  EXPECT_TRUE(contains(job.zero.err(), "    the reason\n")) << job.zero.err();
  EXPECT_TRUE(contains(job.zero.err(), "then ranks 0-2 stopped by the launcher")) << job.zero.err();
  EXPECT_TRUE(contains(job.one.err(), "paceline: rank 3 on node 1 (host ")) << job.one.err();
  expect_nothing_left({&job.zero, &job.one});
}

TEST(HostsFailure, AWorkerOfTheCoordinatorEndsTheOthersToo) {
  TwoNodes job("if [ $RANK = 0 ]; then go; kill -9 $$; fi; sleep 1000", {"--grace", "0"});
  EXPECT_EQ(job.zero.wait(), 137) << job.zero.err();
  EXPECT_EQ(job.one.wait(), 137) << job.one.err();
  EXPECT_TRUE(contains(job.one.err(), "rank 0 on node 0 (host ")) << job.one.err();
  EXPECT_TRUE(contains(job.one.err(), "killed by signal 9 (SIGKILL)")) << job.one.err();
}

TEST(HostsFailure, RanksOfOtherNodesHearTheCause) {
  Job zero(run_worker(1, "WaitsForARankThatDies", coordinator(2, {"--grace", "60"})));
  Job one(run_worker(1, "WaitsForARankThatDies", node(1, 2, rendezvous_of(zero))));
  EXPECT_EQ(zero.wait(), 137) << zero.err();
  EXPECT_EQ(one.wait(), 137) << one.err();
  EXPECT_TRUE(contains(zero.out(), "heard: rank 1 ")) << zero.out();
}

TEST(HostsFailure, AProgramThatCannotBeStartedOnOneNode) {
  const TemporaryFolder folder;
  const std::string bad = folder.file("bad", "#!/no/such/interpreter\n", 0755);
  Job zero(run_sh(1, "sleep 1000", coordinator(2, {"--grace", "0"})));
  Words words{"run", "-n", "1"};
  for (const std::string& word : node(1, 2, rendezvous_of(zero))) words.push_back(word);
  words.insert(words.end(), {"--", bad});
  Job one(words);
  EXPECT_EQ(one.wait(), 127) << one.err();
  EXPECT_EQ(zero.wait(), 127) << zero.err();
  EXPECT_TRUE(contains(zero.err(), "cannot start " + bad)) << zero.err();
  EXPECT_TRUE(contains(zero.err(), "node 1 (host ")) << zero.err();
}

TEST(HostsFailure, CtrlCOnAnyLauncherEndsAll) {
  for (const bool on_zero : {true, false}) {
    TwoNodes job("wait; wait", {}, "trap 'echo interrupted; kill $!; exit 0' INT; { sleep 1000 & }");
    (on_zero ? job.zero : job.one).signal(SIGINT);
    EXPECT_EQ(job.zero.wait(), 130) << job.zero.err();
    EXPECT_EQ(job.one.wait(), 130) << job.one.err();
    EXPECT_EQ(count(job.zero.out(), "interrupted"), 2u) << job.zero.out();
    EXPECT_EQ(count(job.one.out(), "interrupted"), 2u) << job.one.out();
    const std::string text = fmt::format("ended by signal 2 (Ctrl-C) on node {} (host ", on_zero ? 0 : 1);
    EXPECT_TRUE(contains(job.zero.err(), text)) << job.zero.err();
    EXPECT_TRUE(contains(job.one.err(), text)) << job.one.err();
    expect_nothing_left({&job.zero, &job.one});
  }
}

TEST(HostsFailure, AUserSignalToAnyLauncherReachesAllWorkersOnce) {
  const auto warned = [](TwoNodes& job, std::size_t times) {
    return eventually([&] {
      job.zero.read_some();
      job.one.read_some();
      return count(job.zero.out(), "warned") >= times && count(job.one.out(), "warned") >= times;
    });
  };
  for (const auto& [to_zero, to_one] : {std::pair{true, false}, {false, true}, {true, true}}) {
    TwoNodes job("while :; do sleep 0.02; done", {}, "trap 'echo warned' USR1; trap 'exit 0' USR2");
    if (to_zero) job.zero.signal(SIGUSR1);
    if (to_one) job.one.signal(SIGUSR1);
    EXPECT_TRUE(warned(job, 2)) << job.zero.err() << job.one.err();
    (to_zero ? job.zero : job.one).signal(SIGUSR2);
    EXPECT_EQ(job.zero.wait(), 0) << job.zero.err();
    EXPECT_EQ(job.one.wait(), 0) << job.one.err();
    EXPECT_EQ(count(job.zero.out(), "warned"), 2u) << job.zero.out();
    EXPECT_EQ(count(job.one.out(), "warned"), 2u) << job.one.out();
    expect_nothing_left({&job.zero, &job.one});
  }
}

TEST(HostsFailure, WhoWasKilledAfterCtrlCIsSaidOfAllHosts) {
  TwoNodes job("while :; do sleep 0.02; done", {"--grace", "0.1"},
               "trap '' INT; if [ $RANK = 2 ]; then trap 'exit 0' TERM; fi");
  job.one.signal(SIGINT);
  EXPECT_EQ(job.zero.wait(), 130) << job.zero.err();
  EXPECT_EQ(job.one.wait(), 130) << job.one.err();
  EXPECT_TRUE(contains(job.zero.err(), "  ranks 0-1, 3 had not ended within 0.1 s and were killed; --grace SECONDS"))
      << job.zero.err();
}

TEST(HostsFailure, CtrlCWhileNodesAreWaitedFor) {
  Job zero(run_sh(1, "true", coordinator(3)));
  Job one(run_sh(1, "true", node(1, 3, rendezvous_of(zero))));
  ASSERT_TRUE(one.says("has joined job")) << one.err();
  zero.signal(SIGINT);
  EXPECT_EQ(zero.wait(), 130) << zero.err();
  EXPECT_EQ(one.wait(), 130) << one.err();
}

/// Both processes of a launcher at once, so that none of them cleans up: as if the host were gone.
void kill_launcher(Job& job) {
  const pid_t supervisor = job.supervisor();
  ::kill(job.pid(), SIGSTOP);
  ::kill(supervisor, SIGKILL);
  job.signal(SIGKILL);
}

TEST(HostsFailure, ALauncherThatIsKilledIsNamed) {
  for (const bool kill_zero : {true, false}) {
    TwoNodes job("sleep 1000", {"--grace", "0"});
    Job& killed = kill_zero ? job.zero : job.one;
    Job& left = kill_zero ? job.one : job.zero;
    kill_launcher(killed);
    EXPECT_EQ(left.wait(), 69) << left.err();
    EXPECT_TRUE(contains(left.err(), fmt::format("node {} (host ", kill_zero ? 0 : 1))) << left.err();
    EXPECT_TRUE(contains(left.err(), "is lost: ")) << left.err();
    EXPECT_TRUE(left.leaves_nothing());
  }
}

TEST(HostsFailure, ALauncherThatIsStoppedIsSilentAndEndsItsOwnWhenItGoesOn) {
  TwoNodes job("sleep 1000", {"--grace", "0"});
  const pid_t supervisor = job.one.supervisor();
  ::kill(supervisor, SIGSTOP);
  EXPECT_EQ(job.zero.wait(), 69) << job.zero.err();
  EXPECT_TRUE(contains(job.zero.err(), "node 1 (host ")) << job.zero.err();
  EXPECT_TRUE(contains(job.zero.err(), "is lost: it is silent for 4.")) << job.zero.err();
  ::kill(supervisor, SIGCONT);
  EXPECT_EQ(job.one.wait(), 69) << job.one.err();
  expect_nothing_left({&job.zero, &job.one});
}

TEST(HostsFailure, NodesThatAreDoneWaitForTheOthers) {
  TwoNodes job("if [ $GROUP_RANK = 0 ]; then exit 0; fi; go; test $RANK != 2 || exit 6", {"--grace", "0"});
  EXPECT_EQ(job.zero.wait(), 6) << job.zero.err();
  EXPECT_EQ(job.one.wait(), 6) << job.one.err();
}

TEST(HostsFailure, WhoeverTheOthersWaitForIsNamedOnAllNodes) {
  const TemporaryFolder folder;
  const std::string gate = (folder.path / "gate").string();
  // Node 1 has nobody who waits, so its own job status does not show that anything is wrong.
  const Words options{"--stuck", "1", "--env", "TEST_GATE=" + gate};
  Job zero(run_worker(2, "RankTwoWaitsForAGate", coordinator(2, options)));
  Job one(run_worker(1, "RankTwoWaitsForAGate", node(1, 2, rendezvous_of(zero), options)));
  for (Job* job : {&zero, &one}) {
    ASSERT_TRUE(job->says("while ranks 0-1 wait in #2\n")) << job->err();
    EXPECT_TRUE(contains(job->err(), "[E412 STUCK] no progress for 1 s")) << job->err();
    EXPECT_TRUE(contains(job->err(), "  root suspect: rank 2 on ")) << job->err();
    EXPECT_TRUE(contains(job->err(), " is at #1, user code after barrier #1, last seen ")) << job->err();
  }
  folder.file("gate", "", 0600);
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  for (const Job* job : {&zero, &one}) EXPECT_EQ(count(job->err(), "STUCK"), 1u) << job->err();
}

TEST(HostsFailure, RanksOfTwoNodesThatWaitForEachOtherAreEnded) {
  const Words options{"--stuck", "2.2"};
  Job zero(run_worker(1, "WaitsWhereTheOtherDoesNot", coordinator(2, options)));
  Job one(run_worker(1, "WaitsWhereTheOtherDoesNot", node(1, 2, rendezvous_of(zero), options)));
  for (Job* job : {&zero, &one}) {
    EXPECT_EQ(job->wait(), 78) << job->err();
    EXPECT_EQ(count(job->out(), "heard: all ranks wait for each other in operations that the others do not enter"), 1u)
        << job->out();
    EXPECT_TRUE(
        contains(job->err(), "rank 0 waits in barrier #1 of 'world/0.0', rank 1 waits in barrier #1 of 'world/1.0'"))
        << job->err();
  }
}

// ---- All hosts from one terminal.

/// What takes ssh's place: the command line goes to a shell on this host, in another session as sshd does it.
std::string fake_ssh(const TemporaryFolder& folder) {
  return folder.file("ssh", "#!/bin/sh\ntest $# = 2 || exit 96\nexec setsid -w sh -c \"$2\"\n", 0755);
}

Words from_here(const TemporaryFolder& folder, const std::string& hosts) {
  return {"--hosts", hosts, "--bind", "127.0.0.1", "--ssh", fake_ssh(folder)};
}

TEST(HostsBySsh, AllRunFromOneTerminal) {
  const TemporaryFolder folder;
  Words words = from_here(folder, "localhost,b,c:3");
  words.insert(words.end(), {"--env", "A=it's \"$HOME\""});
  Job job(run_sh(1, "echo $RANK of $WORLD_SIZE on $GROUP_RANK: \"$A\"", words));
  EXPECT_EQ(job.wait(), 0) << job.err();
  auto lines = lines_of(job.out());
  std::sort(lines.begin(), lines.end());
  Words expected;
  for (const auto& [rank, group] : {std::pair{0, 0}, {1, 1}, {2, 2}, {3, 2}, {4, 2}}) {
    expected.push_back(fmt::format("[rank {}] {} of 5 on {}: it's \"$HOME\"", rank, rank, group));
  }
  EXPECT_EQ(lines, expected);
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(HostsBySsh, TheSecretIsOnNoCommandLine) {
  const TemporaryFolder folder;
  Job job(run_worker(1, "LooksForItsSecret", from_here(folder, "localhost,b")));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(count(job.out(), "hidden"), 2u) << job.out();
}

TEST(HostsBySsh, AFailureThereEndsAllHere) {
  const TemporaryFolder folder;
  Words words = from_here(folder, "localhost,b");
  words.insert(words.end(), {"--grace", "0"});
  Job job(run_sh(1, "if [ $RANK = 1 ]; then echo the reason >&2; exit 9; fi; sleep 1000", words));
  EXPECT_EQ(job.wait(), 9) << job.err();
  EXPECT_TRUE(contains(job.err(), "paceline: rank 1 on node 1 (host ")) << job.err();
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(HostsBySsh, AHostThatCannotBeReachedEndsTheJobAtOnce) {
  const TemporaryFolder folder;
  const std::string ssh = folder.file("bad", "#!/bin/sh\necho no route to $1 >&2\nexit 255\n", 0755);
  Job job(run_sh(1, "true", {"--hosts", "localhost,b", "--bind", "127.0.0.1", "--ssh", ssh}));
  EXPECT_EQ(job.wait(), 255) << job.err();
  EXPECT_TRUE(contains(job.err(), "no route to b")) << job.err();
  EXPECT_TRUE(contains(job.err(), "for the host b exited with code 255 before its node joined")) << job.err();
}

TEST(HostsBySsh, WhenThisLauncherIsKilledTheOthersEnd) {
  const TemporaryFolder folder;
  Job job(run_sh(1, "echo ready; exec sleep 1000", from_here(folder, "localhost,b")));
  ASSERT_TRUE(eventually([&] {
    job.read_some();
    return count(job.out(), "ready") == 2;
  })) << job.err();
  kill_launcher(job);
  EXPECT_TRUE(job.leaves_nothing());
}

// ---- What workers do in the tests above. Disabled, so that they run only as workers.

TEST(Worker, DISABLED_WaitsForARankThatDies) {
  const Comm comm = Comm::from_env();
  if (comm.rank() == 1) ::raise(SIGKILL);
  try {
    comm.barrier();
  } catch (const Error& error) {
    fmt::print("heard: {}\n", error.message());
    std::fflush(nullptr);
    ::_exit(5);
  }
}

TEST(Worker, DISABLED_WaitsWhereTheOtherDoesNot) {
  const Comm comm = Comm::from_env();
  const Comm model = comm.duplicate(), evaluation = comm.duplicate();
  try {
    (comm.rank() == 0 ? model : evaluation).barrier();
  } catch (const Error& error) {
    fmt::print("heard: {}\n", error.message());
    std::fflush(nullptr);
    ::_exit(5);
  }
}

TEST(Worker, DISABLED_RankTwoWaitsForAGate) {
  const Comm comm = Comm::from_env();
  comm.barrier();
  const bool opened = comm.rank() != 2 || eventually([] { return std::filesystem::exists(std::getenv("TEST_GATE")); });
  ASSERT_TRUE(opened);
  comm.barrier();
}

TEST(Worker, DISABLED_LooksForItsSecret) {
  const std::string secret = std::getenv("PACELINE_SECRET");
  ASSERT_EQ(secret.size(), 2 * Secret::kBytes);
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    ASSERT_FALSE(contains(read_file(entry.path() / "cmdline"), secret)) << entry.path();
  }
  fmt::print("hidden\n");
}

}  // namespace
}  // namespace paceline
