// Jobs of several launchers, which are all on this host here and meet over loopback: who may join, and what workers
// find. How such jobs end is in nodes_failure_test.cpp, what only a network can do in namespaces_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/net/secret.h"
#include "paceline/net/tcp_socket.h"
#include "tests/support/build_paths.h"
#include "tests/support/launched_nodes.h"

namespace paceline {
namespace {

// ---- Meeting.

TEST(Hosts, RanksAreContiguousByNodeAndWorkersFindTheirPlace) {
  const std::string script =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR $PACELINE_BIND "
      "${PACELINE_STORE%%:*} job=$PACELINE_JOB port=$MASTER_PORT";
  Job zero(run_sh(1, script, coordinator(3, {"--job", "train"})));
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
  Job zero(run_worker(2, "SumsItsRanks", coordinator(2, {"--secret-file", secret})));
  Job one(run_worker(2, "SumsItsRanks", node(1, 2, rendezvous_of(zero), {"--secret-file", secret})));
  EXPECT_EQ(zero.wait(), 0) << zero.out() << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.out() << one.err();
  EXPECT_TRUE(contains(zero.out(), "sum 6 of 4")) << zero.out();
  EXPECT_TRUE(contains(one.out(), "sum 6 of 4")) << one.out();
}

TEST(Hosts, ANodeThatComesBeforeTheCoordinatorWaitsForIt) {
  // A port that is free, as far as anybody can know.
  std::uint16_t port = 0;
  {
    const UniqueFd listener = listen_on(SocketAddress("127.0.0.1", 0), {}, 1);
    port = local_address(listener.get()).port();
  }
  const std::string at = fmt::format("127.0.0.1:{}", port);
  Job one(run_sh(1, "echo here", node(1, 2, at)));
  ASSERT_TRUE(one.says("node 1 looks for node 0 at " + at)) << one.err();
  Job zero(run_sh(1, "echo here", node(0, 2, at)));
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
}

TEST(Hosts, TheStoreListensWithinTheRangeOfPorts) {
  const std::string ports = "PACELINE_PORTS=20000-29999";
  Job zero(run_sh(1, "echo $PACELINE_PORTS", coordinator(2, {"--env", ports})));
  Job one(run_sh(1, "echo $PACELINE_STORE", node(1, 2, rendezvous_of(zero))));
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(zero.out(), "[rank 0] 20000-29999\n");
  const std::string mark = "tcp:127.0.0.1:";
  const auto at = one.out().find(mark);
  ASSERT_NE(at, std::string::npos) << one.out();
  const int port = std::stoi(one.out().substr(at + mark.size()));
  EXPECT_TRUE(20000 <= port && port <= 29999) << one.out();

  Job wrong(run_sh(1, "true", coordinator(2, {"--env", "PACELINE_PORTS=4100-4000"})));
  EXPECT_EQ(wrong.wait(), 64);
  EXPECT_TRUE(contains(wrong.err(), "\"4100-4000\" is no port or range of ports")) << wrong.err();
}

TEST(Hosts, OtherProgramsOnTwoNodesAreAWarning) {
  Job zero(run_sh(1, "echo a", coordinator(2)));
  Job one(run_sh(1, "echo b", node(1, 2, rendezvous_of(zero))));
  EXPECT_EQ(zero.wait(), 0);
  EXPECT_EQ(one.wait(), 0);
  EXPECT_TRUE(contains(zero.err(), "starts another program than node 0: \"sh -c echo b\" there, \"sh -c echo a\" here"))
      << zero.err();
}

// ---- Not meeting.

TEST(HostsRefused, APortInUseNamesTheProcess) {
  const UniqueFd listener = listen_on(SocketAddress("127.0.0.1", 0), {}, 1);
  const SocketAddress at = local_address(listener.get());
  Job zero(run_sh(1, "true", node(0, 2, at.text())));
  EXPECT_EQ(zero.wait(), 69);
  EXPECT_TRUE(
      contains(zero.err(), fmt::format("port {} of 127.0.0.1 is in use by process {} (", at.port(), ::getpid())))
      << zero.err();
  EXPECT_TRUE(contains(zero.err(), "launch_nodes_n")) << zero.err();
}

TEST(HostsRefused, AnotherUsersCoordinatorOnLoopback) {
  Job stranger(run_sh(1, "true", coordinator(2)),
               {.within = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}});
  const std::string at = rendezvous_of(stranger);
  Job one(run_sh(1, "true", node(1, 2, at)));
  EXPECT_EQ(one.wait(), 78) << one.err();
  EXPECT_TRUE(contains(one.err(), fmt::format("what listens at {} is not known to be this job's node 0: it belongs to "
                                              "another user (65534), and this job has no secret; give --secret-file",
                                              at)))
      << one.err();
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
  Job job(run_sh(1, "true", coordinator(2, {"--secret-file", secret})));
  EXPECT_EQ(job.wait(), 64);
  EXPECT_TRUE(contains(job.err(), "can be used by others than its owner: chmod 600")) << job.err();
}

TEST(HostsRefused, AnotherSecret) {
  const TemporaryFolder folder;
  const std::string right = folder.file("right", Secret::random().hex(), 0600);
  const std::string wrong = folder.file("wrong", Secret::random().hex(), 0600);
  Job zero(run_sh(1, "true", coordinator(2, {"--secret-file", right})));
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
  Job zero(run_sh(1, "true", coordinator(3, {"--job", "train"})));
  const std::string at = rendezvous_of(zero);
  Job one(run_sh(1, "true", node(1, 3, at)));
  ASSERT_TRUE(zero.says("2 of 3 nodes have joined; waiting for node 2")) << zero.err();

  Job second(run_sh(1, "true", node(1, 3, at)));
  EXPECT_EQ(second.wait(), 78);
  EXPECT_TRUE(contains(second.err(), "there are two launchers with --node-rank 1: host ")) << second.err();
  EXPECT_EQ(count(second.err(), "at 127.0.0.1:"), 2u) << "both are named: " << second.err();
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
  Job zero(run_sh(1, "true", coordinator(3, {"--join-timeout", "2"})));
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
  Job zero(run_sh(1, "true", coordinator(3)));
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

TEST(Hosts, TheCoordinatorMakesASecretWhereOthersCouldReachIt) {
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
  const std::string command = test::kPacelineBinary + line.substr(line.find(" run "));
  EXPECT_EQ(std::system(("unset PACELINE_SECRET_FILE; " + command + " >/dev/null 2>&1").c_str()), 0) << command;
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_FALSE(std::filesystem::exists(path));
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

}  // namespace
}  // namespace paceline
