// Jobs of several launchers, which are all on this host here and meet over loopback: who may join, what workers find,
// and that one failure anywhere ends all with the same cause. What only a network can do is in namespaces_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/comm/secret.h"
#include "paceline/comm/tcp_socket.h"
#include "tests/launched_job.h"

namespace paceline {
namespace {

using Words = std::vector<std::string>;

Words node(int rank, int nodes, const std::string& rendezvous, const Words& more = {}) {
  Words words{"--nnodes", std::to_string(nodes), "--node-rank", std::to_string(rank), "--rendezvous", rendezvous};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words node_zero(int nodes, const Words& more = {}) { return node(0, nodes, "127.0.0.1:0", more); }

/// Where node 0 says that it listens.
std::string rendezvous_of(Job& zero) {
  const std::string mark = "listens at ";
  std::size_t at = std::string::npos, end = std::string::npos;
  const auto said = eventually([&] {
    zero.read_some();
    at = zero.err().find(mark);
    end = at == std::string::npos ? at : zero.err().find(' ', at + mark.size());
    return end != std::string::npos;
  });
  if (!said) throw std::runtime_error("node 0 does not say where it listens: " + zero.err());
  return zero.err().substr(at + mark.size(), end - at - mark.size());
}

void expect_nothing_left(std::initializer_list<Job*> jobs) {
  for (Job* job : jobs) EXPECT_TRUE(job->leaves_nothing());
}

// ---- Meeting.

TEST(Hosts, RanksAreContiguousByNodeAndWorkersFindTheirPlace) {
  const std::string script =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR $PACELINE_BIND "
      "${PACELINE_STORE%%:*} job=$PACELINE_JOB port=$MASTER_PORT";
  Job zero(run_sh(1, script, node_zero(3, {"--job", "train"})));
  const std::string at = rendezvous_of(zero);
  Job two(run_sh(1, script, node(2, 3, at)));
  Job one(run_sh(2, script, node(1, 3, at)));
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(two.wait(), 0) << two.err();
  const std::string port = zero.out().substr(zero.out().find("port="));
  const std::string rest = " job=train " + port;
  EXPECT_EQ(zero.out(), "[rank 0] 0 4 0 1 0 3 127.0.0.1 127.0.0.1 unix" + rest);
  auto lines = lines_of(one.out());
  std::sort(lines.begin(), lines.end());
  ASSERT_EQ(lines.size(), 2u) << one.err();
  EXPECT_EQ(lines[0] + "\n", "[rank 1] 1 4 0 2 1 3 127.0.0.1 127.0.0.1 tcp" + rest);
  EXPECT_EQ(lines[1] + "\n", "[rank 2] 2 4 1 2 1 3 127.0.0.1 127.0.0.1 tcp" + rest);
  EXPECT_EQ(two.out(), "[rank 3] 3 4 0 1 2 3 127.0.0.1 127.0.0.1 tcp" + rest);
  EXPECT_TRUE(contains(zero.err(), "waiting for node 1") || contains(zero.err(), "waiting for node 2")) << zero.err();
  EXPECT_TRUE(contains(zero.err(), "all 3 nodes have joined, with 4 workers")) << zero.err();
  expect_nothing_left({&zero, &one, &two});
}

TEST(Hosts, CollectivesReachAllNodes) {
  const TemporaryFolder folder;
  const std::string secret = folder.file("secret", Secret::random().hex(), 0600);
  Job zero(run_worker(2, "SumsItsRanks", node_zero(2, {"--secret-file", secret})));
  Job one(run_worker(2, "SumsItsRanks", node(1, 2, rendezvous_of(zero), {"--secret-file", secret})));
  EXPECT_EQ(zero.wait(), 0) << zero.out() << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.out() << one.err();
  EXPECT_TRUE(contains(zero.out(), "sum 6 of 4")) << zero.out();
  EXPECT_TRUE(contains(one.out(), "sum 6 of 4")) << one.out();
}

TEST(Hosts, ANodeThatComesBeforeNodeZeroWaitsForIt) {
  // A port that is free, as far as anybody can know.
  std::uint16_t port = 0;
  {
    const UniqueFd listener = listen_on(SocketAddress("127.0.0.1", 0), 0, 0, 1);
    port = local_address(listener.get()).port();
  }
  const std::string at = fmt::format("127.0.0.1:{}", port);
  Job one(run_sh(1, "echo here", node(1, 2, at)));
  ASSERT_TRUE(one.says("node 1 looks for node 0 at " + at)) << one.err();
  Job zero(run_sh(1, "echo here", node(0, 2, at)));
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
}

TEST(Hosts, OtherProgramsOnTwoNodesAreAWarning) {
  Job zero(run_sh(1, "echo a", node_zero(2)));
  Job one(run_sh(1, "echo b", node(1, 2, rendezvous_of(zero))));
  EXPECT_EQ(zero.wait(), 0);
  EXPECT_EQ(one.wait(), 0);
  EXPECT_TRUE(contains(zero.err(), "starts another program than node 0: \"sh -c echo b\" there, \"sh -c echo a\" here"))
      << zero.err();
}

// ---- Not meeting.

TEST(HostsRefused, APortInUseNamesTheProcess) {
  const UniqueFd listener = listen_on(SocketAddress("127.0.0.1", 0), 0, 0, 1);
  const SocketAddress at = local_address(listener.get());
  Job zero(run_sh(1, "true", node(0, 2, at.text())));
  EXPECT_EQ(zero.wait(), 69);
  EXPECT_TRUE(
      contains(zero.err(), fmt::format("port {} of 127.0.0.1 is in use by process {} (", at.port(), ::getpid())))
      << zero.err();
  EXPECT_TRUE(contains(zero.err(), "hosts_test")) << zero.err();
}

TEST(HostsRefused, ANameThatDoesNotResolve) {
  for (const int rank : {0, 1}) {
    Job job(run_sh(1, "true", node(rank, 2, "no-such-host.invalid:4000")));
    EXPECT_EQ(job.wait(), 64);
    EXPECT_TRUE(contains(job.err(), "the host name \"no-such-host.invalid\" does not resolve")) << job.err();
  }
}

TEST(HostsRefused, ASecretFileThatOthersMayRead) {
  const TemporaryFolder folder;
  const std::string secret = folder.file("secret", Secret::random().hex(), 0644);
  Job job(run_sh(1, "true", node_zero(2, {"--secret-file", secret})));
  EXPECT_EQ(job.wait(), 64);
  EXPECT_TRUE(contains(job.err(), "can be used by others than its owner: chmod 600")) << job.err();
}

TEST(HostsRefused, AnotherSecret) {
  const TemporaryFolder folder;
  const std::string right = folder.file("right", Secret::random().hex(), 0600);
  const std::string wrong = folder.file("wrong", Secret::random().hex(), 0600);
  Job zero(run_sh(1, "true", node_zero(2, {"--secret-file", right})));
  const std::string at = rendezvous_of(zero);
  Job stranger(run_sh(1, "true", node(1, 2, at, {"--secret-file", wrong})));
  EXPECT_EQ(stranger.wait(), 78);
  EXPECT_TRUE(
      contains(stranger.err(), fmt::format("node 0 at {} does not let this node in: it has another secret", at)))
      << stranger.err();
  Job one(run_sh(1, "true", node(1, 2, at, {"--secret-file", right})));
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(zero.wait(), 0) << zero.err();
}

TEST(HostsRefused, TwoWithTheSameRankAnotherCountAndAnotherJob) {
  Job zero(run_sh(1, "true", node_zero(3, {"--job", "train"})));
  const std::string at = rendezvous_of(zero);
  Job one(run_sh(1, "true", node(1, 3, at)));
  ASSERT_TRUE(zero.says("2 of 3 nodes have joined; waiting for node 2")) << zero.err();

  Job twin(run_sh(1, "true", node(1, 3, at)));
  EXPECT_EQ(twin.wait(), 78);
  EXPECT_TRUE(contains(twin.err(), "there are two launchers with --node-rank 1: host ")) << twin.err();
  EXPECT_EQ(count(twin.err(), "at 127.0.0.1:"), 2u) << "both are named: " << twin.err();
  ASSERT_TRUE(zero.says("sent a launcher away: there are two launchers with --node-rank 1"));

  Job counts(run_sh(1, "true", node(2, 4, at)));
  EXPECT_EQ(counts.wait(), 78);
  EXPECT_TRUE(contains(counts.err(), "was started with --nnodes 4, but node 0 with --nnodes 3")) << counts.err();

  Job other(run_sh(1, "true", node(2, 3, at, {"--job", "evaluate"})));
  EXPECT_EQ(other.wait(), 78);
  EXPECT_TRUE(contains(other.err(), "two jobs meet at this rendezvous: node 0 runs job \"train\"")) << other.err();

  Job two(run_sh(1, "true", node(2, 3, at)));
  EXPECT_EQ(two.wait(), 0) << two.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(zero.wait(), 0) << zero.err();
}

TEST(HostsRefused, ANodeThatIsMissingAtTheDeadlineIsNamedToAll) {
  Job zero(run_sh(1, "true", node_zero(3, {"--join-timeout", "2"})));
  Job one(run_sh(1, "true", node(1, 3, rendezvous_of(zero))));
  EXPECT_EQ(zero.wait(), 69);
  EXPECT_EQ(one.wait(), 69);
  for (const Job* job : {&zero, &one}) {
    EXPECT_TRUE(contains(job->err(), "node 2 did not join within 2 s; there were node 0 (host ")) << job->err();
  }
  Job alone(run_sh(1, "true", node(1, 2, "127.0.0.1:9", {"--join-timeout", "1"})));
  EXPECT_EQ(alone.wait(), 69);
  EXPECT_TRUE(contains(alone.err(),
                       "node 0 was not found at 127.0.0.1:9 within 1 s: 127.0.0.1:9: connecting: Connection "
                       "refused"))
      << alone.err();
}

TEST(HostsRefused, ANodeThatLeavesWhileOthersAreWaitedForMayComeAgain) {
  Job zero(run_sh(1, "true", node_zero(3)));
  const std::string at = rendezvous_of(zero);
  {
    Job one(run_sh(1, "true", node(1, 3, at)));
    ASSERT_TRUE(zero.says("2 of 3 nodes have joined")) << zero.err();
  }  // killed
  ASSERT_TRUE(zero.says("has left while others were waited for")) << zero.err();
  Job one(run_sh(1, "true", node(1, 3, at))), two(run_sh(1, "true", node(2, 3, at)));
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(two.wait(), 0) << two.err();
}

TEST(HostsRefused, BadUseSaysWhatIsMissing) {
  const auto refused = [](const Words& options, const std::string& text, int code = 64) {
    Job job(run_sh(1, "true", options));
    EXPECT_EQ(job.wait(), code);
    EXPECT_TRUE(contains(job.err(), text)) << job.err();
  };
  refused({"--nnodes", "2"}, "needs --node-rank");
  refused({"--node-rank", "1"}, "needs --nnodes");
  refused({"--nnodes", "2", "--node-rank", "0"}, "needs --rendezvous HOST:PORT");
  refused(node(2, 2, "127.0.0.1:4000"), "--node-rank");
  refused(node(1, 2, "127.0.0.1:0"), "needs the port at which node 0 listens");
  refused(node(0, 2, "127.0.0.1"), "is no HOST:PORT");
  refused(node(0, 2, "0.0.0.0:0"), "0.0.0.0 is every address of this host");
  refused(node(0, 2, "127.0.0.1:0", {"--transport", "shm"}), "shm ends at the host");
  refused(node(1, 2, "192.0.2.1:4000"), "needs the secret of its node 0: give --secret-file");
  refused({"--bind", "eth0"}, "is for several hosts");
  refused({"--hosts", "192.0.2.1,b"}, "begins with the host it is started on");
  refused({"--hosts", "localhost,-oProxyCommand=x"}, "is no host");
  refused({"--hosts", "localhost,b", "--bind", "127.0.0.1", "--ssh", "/no/such/ssh"}, "/no/such/ssh", 127);
  refused(node(0, 2, "192.0.2.1:0"), "Node 0 has to run on the host that --rendezvous names", 69);
}

TEST(Hosts, NodeZeroMakesASecretWhereOthersCouldReachIt) {
  // An address of this host that is not loopback, wherever this runs: by which it would reach the documentation's.
  std::string address;
  try {
    address = address_towards("192.0.2.1").host();
  } catch (const Error&) {
    GTEST_FAIL() << "this host has no network";
  }
  Job zero(run_sh(1, "echo $RANK", node(0, 2, address + ":0", {"--job", "it's"})));
  ASSERT_TRUE(zero.says("-- sh -c")) << zero.err();
  const std::string mark = "\n  paceline run --nnodes 2 --node-rank 1 ";
  ASSERT_TRUE(contains(zero.err(), mark)) << zero.err();
  const std::string line = lines_of(zero.err().substr(zero.err().find(mark) + 1)).front();
  const std::string file = line.substr(line.find("--secret-file ") + 14);
  const std::string path = file.substr(0, file.find(' '));
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  // As a user would: the printed line, in a shell.
  const std::string command = PACELINE_BINARY + line.substr(line.find(" run "));
  EXPECT_EQ(std::system(("unset PACELINE_SECRET_FILE; " + command + " >/dev/null 2>&1").c_str()), 0) << command;
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_FALSE(std::filesystem::exists(path));
}

// ---- One job, one end.

/// Two nodes with two workers each, which have all started. In `script`, `go` waits for that.
struct TwoNodes {
  explicit TwoNodes(const std::string& script, const Words& options = {})
      : zero(run_sh(2, with_go(script), node_zero(2, options))),
        one(run_sh(2, with_go(script), node(1, 2, rendezvous_of(zero), options))) {
    const auto started = eventually([&] {
      zero.read_some();
      one.read_some();
      return count(zero.out(), "ready") == 2 && count(one.out(), "ready") == 2;
    });
    if (!started) throw std::runtime_error("not all workers started: " + zero.err() + one.err());
    folder.file("go", "", 0600);
  }
  std::string with_go(const std::string& script) const {
    return fmt::format("go() {{ until [ -e {} ]; do sleep 0.02; done; }}; echo ready; {}",
                       (folder.path / "go").string(), script);
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

TEST(HostsFailure, AWorkerOfNodeZeroEndsTheOthersToo) {
  TwoNodes job("if [ $RANK = 0 ]; then go; kill -9 $$; fi; sleep 1000", {"--grace", "0"});
  EXPECT_EQ(job.zero.wait(), 137) << job.zero.err();
  EXPECT_EQ(job.one.wait(), 137) << job.one.err();
  EXPECT_TRUE(contains(job.one.err(), "rank 0 on node 0 (host ")) << job.one.err();
  EXPECT_TRUE(contains(job.one.err(), "killed by signal 9 (SIGKILL)")) << job.one.err();
}

TEST(HostsFailure, RanksOfOtherNodesHearTheCause) {
  Job zero(run_worker(1, "WaitsForARankThatDies", node_zero(2, {"--grace", "60"})));
  Job one(run_worker(1, "WaitsForARankThatDies", node(1, 2, rendezvous_of(zero))));
  EXPECT_EQ(zero.wait(), 137) << zero.err();
  EXPECT_EQ(one.wait(), 137) << one.err();
  EXPECT_TRUE(contains(zero.out(), "heard: rank 1 ")) << zero.out();
}

TEST(HostsFailure, AProgramThatCannotBeStartedOnOneNode) {
  const TemporaryFolder folder;
  const std::string bad = folder.file("bad", "#!/no/such/interpreter\n", 0755);
  Job zero(run_sh(1, "sleep 1000", node_zero(2, {"--grace", "0"})));
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
    TwoNodes job("trap 'echo interrupted; kill $!; exit 0' INT; sleep 1000 & wait; wait");
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

TEST(HostsFailure, CtrlCWhileNodesAreWaitedFor) {
  Job zero(run_sh(1, "true", node_zero(3)));
  Job one(run_sh(1, "true", node(1, 3, rendezvous_of(zero))));
  ASSERT_TRUE(one.says("has joined job")) << one.err();
  zero.signal(SIGINT);
  EXPECT_EQ(zero.wait(), 130) << zero.err();
  EXPECT_EQ(one.wait(), 130) << one.err();
}

/// Both processes of a launcher at once, so that none of them cleans up: as if the host were gone.
void kill_launcher(Job& job) {
  const pid_t guard = job.guard();
  ::kill(job.pid(), SIGSTOP);
  ::kill(guard, SIGKILL);
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
  const pid_t guard = job.one.guard();
  ::kill(guard, SIGSTOP);
  EXPECT_EQ(job.zero.wait(), 69) << job.zero.err();
  EXPECT_TRUE(contains(job.zero.err(), "node 1 (host ")) << job.zero.err();
  EXPECT_TRUE(contains(job.zero.err(), "is lost: it is silent for 4.")) << job.zero.err();
  ::kill(guard, SIGCONT);
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
  // Node 1 has nobody who waits, so its own board does not show that anything is wrong.
  const Words options{"--stuck", "1", "--env", "TEST_GATE=" + gate};
  Job zero(run_worker(2, "RankTwoWaitsForAGate", node_zero(2, options)));
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

TEST(Worker, DISABLED_SumsItsRanks) {
  const Comm comm = Comm::from_env();
  std::vector<float> small{static_cast<float>(comm.rank())}, large(100'000, static_cast<float>(comm.rank()));
  comm.all_reduce<float>(small);
  comm.all_reduce<float>(large);
  const bool same = std::all_of(large.begin(), large.end(), [&](float x) { return x == small[0]; });
  fmt::print("sum {} of {}\n", same ? small[0] : -1, comm.world_size());
}

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
