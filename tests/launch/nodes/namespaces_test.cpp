// Jobs over hosts with a network between them, which are network namespaces here: collectives, names and addresses, and
// what happens when a host is cut off. Fails where namespaces cannot be made.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/net/secret.h"
#include "tests/support/launched_job.h"
#include "tests/support/network_hosts.h"

namespace paceline {
namespace {

using test::NetworkHosts;
using Words = std::vector<std::string>;

/// Launchers on the hosts of a network, node i on host i, each with this many workers.
struct Cluster {
  static constexpr int kPort = 4711;  // nobody else is in these namespaces

  explicit Cluster(int hosts, int workers, const std::string& worker_test, const std::string& rendezvous,
                   const Words& more = {})
      : network(hosts) {
    for (int host = 0; host < hosts; ++host) {
      Words options{"--nnodes", std::to_string(hosts), "--node-rank", std::to_string(host), "--rendezvous",
                    rendezvous, "--secret-file",       secret};
      options.insert(options.end(), more.begin(), more.end());
      nodes.push_back(
          std::make_unique<Job>(run_worker(workers, worker_test, options), Setup{.within = network.on(host)}));
    }
  }

  TemporaryFolder folder;
  const std::string secret = folder.file("secret", Secret::random().hex(), 0600);
  NetworkHosts network;
  std::vector<std::unique_ptr<Job>> nodes;
};

std::string zero_v4() { return fmt::format("{}:{}", NetworkHosts::address(0), Cluster::kPort); }
std::string zero_v6() { return fmt::format("[{}]:{}", NetworkHosts::address_v6(0), Cluster::kPort); }

TEST(Namespaces, CollectivesAreRightOverIPv4AndIPv6) {
  for (const auto& [rendezvous, transport] :
       {std::pair{zero_v4(), "tcp"}, {zero_v4(), "auto"}, {zero_v6(), "tcp"}, {zero_v6(), "auto"}}) {
    SCOPED_TRACE(rendezvous + " " + transport);
    Cluster cluster(2, 2, "Reduces", rendezvous, {"--transport", transport});
    for (const auto& node : cluster.nodes) {
      EXPECT_EQ(node->wait(), 0) << node->out() << node->err();
      EXPECT_EQ(count(node->out(), "right"), 2u) << node->out();
    }
    EXPECT_TRUE(contains(cluster.nodes[0]->err(), "all 2 nodes have joined, with 4 workers"))
        << cluster.nodes[0]->err();
  }
}

TEST(Namespaces, NamesAreResolvedOnEachHost) {
  const TemporaryFolder names;
  const test::OwnHostNames own(names.path / "hosts", NetworkHosts::address(0) + " zero\n127.0.1.1 itself\n");
  {
    Cluster cluster(2, 1, "Reduces", fmt::format("zero:{}", Cluster::kPort));
    for (const auto& node : cluster.nodes) EXPECT_EQ(node->wait(), 0) << node->err();
  }
  Cluster cluster(2, 1, "Reduces", fmt::format("itself:{}", Cluster::kPort), {"--join-timeout", "1"});
  EXPECT_EQ(cluster.nodes[0]->wait(), 64);
  EXPECT_TRUE(contains(cluster.nodes[0]->err(), "\"itself\" is 127.0.1.1 on this host (see /etc/hosts)"))
      << cluster.nodes[0]->err();
  EXPECT_EQ(cluster.nodes[1]->wait(), 69) << cluster.nodes[1]->err();
}

TEST(Namespaces, InterfacesCanBeNamed) {
  Cluster cluster(2, 1, "Reduces", zero_v4(), {"--bind", "=eth"});
  for (const auto& node : cluster.nodes) EXPECT_EQ(node->wait(), 0) << node->err();
}

TEST(Namespaces, AHostThatIsCutOffIsNamedOnAllSides) {
  struct Case {
    const char* how;
    std::function<void(const NetworkHosts&)> cut;
    std::unique_ptr<Cluster> cluster = {};
    Nanoseconds cut_at = {};
  };
  std::vector<Case> cases;
  cases.push_back({"nothing comes to it", [](const NetworkHosts& n) { n.drop_what_comes_to(1); }});
  cases.push_back({"nothing leaves it", [](const NetworkHosts& n) { n.drop_what_leaves(1); }});
  cases.push_back({"both", [](const NetworkHosts& n) { n.drop_what_comes_to(1), n.drop_what_leaves(1); }});
  cases.push_back({"its link is down", [](const NetworkHosts& n) { n.take_link_down(1); }});
  cases.push_back({"node 0 is the one", [](const NetworkHosts& n) { n.take_link_down(0); }});
  for (Case& one : cases) {
    one.cluster = std::make_unique<Cluster>(3, 1, "ReducesForever", zero_v4(), Words{"--grace", "0.2"});
  }
  for (Case& one : cases) {
    SCOPED_TRACE(one.how);
    for (const auto& node : one.cluster->nodes) ASSERT_TRUE(node->says("reducing")) << node->err();
    one.cut(one.cluster->network);
    one.cut_at = now();
  }
  for (Case& one : cases) {
    SCOPED_TRACE(one.how);
    const bool zero_is_cut = std::string(one.how) == "node 0 is the one";
    const int cut = zero_is_cut ? 0 : 1;
    for (int node = 0; node < 3; ++node) {
      Job& job = *one.cluster->nodes[static_cast<std::size_t>(node)];
      EXPECT_EQ(job.wait(), 69) << "node " << node << job.err();
      // The one that is cut off sees that of node 0, which watches all others; that of the others, if it is node 0.
      const int lost = node == cut ? (zero_is_cut ? 1 : 0) : cut;
      const auto name = [&](int who) {
        return fmt::format("node {} (host {} at {})", who, one.cluster->network.name(who), NetworkHosts::address(who));
      };
      const bool named = contains(job.err(), name(lost) + " is lost: it is silent for 4.") ||
                         (zero_is_cut && node == 0 && contains(job.err(), name(2) + " is lost: it is silent for 4."));
      EXPECT_TRUE(named) << "node " << node << " says: " << job.err();
      EXPECT_TRUE(contains(job.out(), "E208 PEER_LOST")) << "node " << node << " hears: " << job.out();
    }
    RecordProperty(std::string("seconds, ") + one.how, fmt::format("{:.2f}", seconds(now() - one.cut_at)));
    for (const auto& node : one.cluster->nodes) EXPECT_TRUE(node->leaves_nothing());
  }
}

/// Two hosts with two workers each, of which rank 3 gets a signal: what all ranks and both launchers say of it.
void expect_named_everywhere(int signal, const std::string& fault, const std::string& how) {
  std::map<std::string, std::unique_ptr<Cluster>> clusters;  // by transport
  std::map<std::string, pid_t> pids;
  for (const char* transport : {"auto", "tcp"}) {
    clusters[transport] =
        std::make_unique<Cluster>(2, 2, "ReducesForever", zero_v4(), Words{"--transport", transport, "--silence", "2"});
  }
  for (auto& [transport, cluster] : clusters) {
    pids[transport] = pid_printed(*cluster->nodes[1], 3);
    ASSERT_GT(pids[transport], 0) << cluster->nodes[1]->err();
    ::kill(pids[transport], signal);
  }
  for (auto& [transport, cluster] : clusters) {
    SCOPED_TRACE(transport);
    const std::string host = cluster->network.name(1);
    const std::string who = fmt::format("rank 3 (host {}, pid {}) {}", host, pids[transport], how);
    for (int node = 0; node < 2; ++node) {
      Job& job = *cluster->nodes[static_cast<std::size_t>(node)];
      EXPECT_EQ(job.wait(), 128 + SIGKILL) << job.err();
      const std::string summary = fmt::format("paceline: rank 3 on node 1 (host {} at {}) failed first, after ", host,
                                              NetworkHosts::address(1));
      EXPECT_TRUE(contains(job.err(), summary)) << "node " << node << ": " << job.err();
      EXPECT_TRUE(contains(job.err(), how)) << "node " << node << ": " << job.err();
      for (const int rank : node == 0 ? std::vector{0, 1} : std::vector{2}) {
        const std::string heard = fmt::format("[rank {0}] heard: [paceline {1}] rank {0}: {2}", rank, fault, who);
        EXPECT_EQ(count(job.out(), heard), 1u) << "rank " << rank << ": " << job.out() << job.err();
      }
      EXPECT_TRUE(job.leaves_nothing());
    }
    const std::string err = cluster->nodes[0]->err();
    EXPECT_TRUE(contains(err, fmt::format("  [{}] host {}, pid {}, after all_reduce #", fault, host, pids[transport])))
        << err;
    EXPECT_TRUE(contains(err, "  hint: ")) << err;
  }
}

TEST(Namespaces, AWorkerThatIsKilledOnOneHostIsTheCauseOnAll) {
  expect_named_everywhere(SIGKILL, "E201 PEER_LOST", "killed by signal 9 (SIGKILL)");
}

TEST(Namespaces, AWorkerThatIsStoppedOnOneHostIsNamedOnAll) {
  expect_named_everywhere(SIGSTOP, "E203 PEER_LOST", "sent no heartbeat for 2");
}

TEST(Namespaces, AllHostsRunFromOneTerminal) {
  const NetworkHosts network(3);
  const TemporaryFolder folder;
  const std::string ssh =
      folder.file("ssh", "#!/bin/sh\ntest $# = 2 || exit 96\nexec ip netns exec \"$1\" sh -c \"$2\"\n", 0755);
  Job job(run_worker(1, "Reduces",
                     {"--hosts", fmt::format("localhost,{}:2,{}", network.name(1), network.name(2)), "--bind",
                      NetworkHosts::address(0), "--ssh", ssh}),
          {.within = network.on(0)});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(count(job.out(), "right"), 4u) << job.out();
  EXPECT_TRUE(job.leaves_nothing());
}

// ---- What workers do in the tests above. Disabled, so that they run only as workers.

TEST(Worker, DISABLED_Reduces) {
  const Comm comm = Comm::from_env();
  const int n = comm.world_size();
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{300'007}}) {
    std::vector<float> data(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(comm.rank() + static_cast<int>(i % 7));
    comm.all_reduce<float>(data);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(data[i], static_cast<float>(n * (n - 1) / 2 + n * static_cast<int>(i % 7))) << i << " of " << count;
    }
  }
  fmt::print("right\n");
}

TEST(Worker, DISABLED_ReducesForever) {
  const Comm comm = Comm::from_env();
  std::vector<float> data(1000, 1);
  comm.all_reduce<float>(data);
  fmt::print("reducing\npid {}\n", ::getpid());
  std::fflush(nullptr);
  try {
    while (true) {
      std::fill(data.begin(), data.end(), 1.0F);
      comm.all_reduce<float>(data);
      ::usleep(5000);  // a step's computing, without the processor
    }
  } catch (const Error& error) {
    fmt::print("heard: {}\n", error.what());
    std::fflush(nullptr);
    ::_exit(3);
  }
}

}  // namespace
}  // namespace paceline
