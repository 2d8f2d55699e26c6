#include "paceline/base/topology.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "paceline/comm/shm/segment.h"
#include "tests/support/launched_job.h"

namespace paceline {
namespace {

/// A tree like the kernel's, with these files below node/.
struct FakeSysfs {
  explicit FakeSysfs(const std::map<std::string, std::string>& files) {
    for (const auto& [name, text] : files) {
      std::filesystem::create_directories((folder.path / "node" / name).parent_path());
      folder.file("node/" + name, text, 0644);
    }
  }
  std::vector<NumaNode> nodes() const { return numa_nodes(folder.path); }
  TemporaryFolder folder;
};

CpuAllowance allowed(const std::vector<int>& cpus) {
  CpuAllowance allowance;
  for (const int cpu : cpus) {
    allowance.mask[static_cast<std::size_t>(cpu / 64)] |= std::uint64_t{1} << (cpu % 64);
  }
  return allowance;
}

/// What a cgroup's files allow.
int quota_with(const std::map<std::string, std::string>& files) {
  const TemporaryFolder folder;
  for (const auto& [name, text] : files) {
    std::filesystem::create_directories((folder.path / name).parent_path());
    folder.file(name, text, 0644);
  }
  return cpu_allowance(folder.path).quota;
}

TEST(CpuQuota, IsThatOfOnesOwnCgroupAndOfThoseAboveIt) {
  const std::string self = "proc/self/cgroup", v2 = "sys/fs/cgroup/", v1 = "sys/fs/cgroup/cpu/";
  EXPECT_EQ(quota_with({}), CpuAllowance::kMaxCpus);
  EXPECT_EQ(quota_with({{self, "0::/\n"}, {v2 + "cpu.max", "150000 100000\n"}}), 2) << "a container's root";
  EXPECT_EQ(quota_with({{self, "0::/a/b\n"}, {v2 + "a/b/cpu.max", "300000 100000\n"}}), 3) << "its own";
  EXPECT_EQ(
      quota_with({{self, "0::/a/b\n"}, {v2 + "a/cpu.max", "100000 100000\n"}, {v2 + "a/b/cpu.max", "max 100000\n"}}), 1)
      << "of the one above";
  EXPECT_EQ(quota_with({{self, "0::/a\n"}, {v2 + "a/cpu.max", "max 100000\n"}}), CpuAllowance::kMaxCpus);
  EXPECT_EQ(quota_with({{self, "0::/a\n"}, {v2 + "b/cpu.max", "100000 100000\n"}}), CpuAllowance::kMaxCpus)
      << "another's";
  EXPECT_EQ(quota_with({{self, "4:cpu,cpuacct:/job\n0::/\n"},
                        {v1 + "job/cpu.cfs_quota_us", "250000\n"},
                        {v1 + "job/cpu.cfs_period_us", "100000\n"}}),
            3);
  EXPECT_EQ(quota_with({{self, "4:cpu:/of/the/host\n"},
                        {v1 + "cpu.cfs_quota_us", "200000\n"},
                        {v1 + "cpu.cfs_period_us", "100000\n"}}),
            2)
      << "inside a container";
  EXPECT_EQ(
      quota_with({{self, "4:cpu:/\n"}, {v1 + "cpu.cfs_quota_us", "-1\n"}, {v1 + "cpu.cfs_period_us", "100000\n"}}),
      CpuAllowance::kMaxCpus);
  EXPECT_EQ(quota_with({{self, "nonsense\n0:\n"}, {v2 + "cpu.max", "junk\n"}}), CpuAllowance::kMaxCpus);
}

TEST(Topology, OneNodeIsNoChoice) {
  const FakeSysfs host({{"online", "0\n"}, {"node0/cpulist", "0-1\n"}});
  ASSERT_EQ(host.nodes().size(), 1u);
  EXPECT_EQ(host.nodes()[0].cpus, (std::vector{0, 1}));
  EXPECT_EQ(node_of(allowed({0}), host.nodes()), std::nullopt);
}

TEST(Topology, AMaskWithinOneOfTwoNodesPrefersIt) {
  const FakeSysfs host({{"online", "0-1\n"}, {"node0/cpulist", "0-1,128-129\n"}, {"node1/cpulist", "2-3,130-131\n"}});
  EXPECT_EQ(node_of(allowed({0, 129}), host.nodes()), 0);
  EXPECT_EQ(node_of(allowed({3}), host.nodes()), 1);
  EXPECT_EQ(node_of(allowed({1, 2}), host.nodes()), std::nullopt);
  EXPECT_EQ(node_of(allowed({2, 7}), host.nodes()), std::nullopt) << "processor 7 is on no node";
  EXPECT_EQ(node_of(allowed({}), host.nodes()), std::nullopt);
}

TEST(Topology, NodesWithoutProcessorsAreNoOnesNode) {
  const FakeSysfs host({{"online", "0,2\n"}, {"node0/cpulist", "0-3\n"}, {"node2/cpulist", "\n"}});
  ASSERT_EQ(host.nodes().size(), 2u);
  EXPECT_EQ(host.nodes()[1].id, 2);
  EXPECT_TRUE(host.nodes()[1].cpus.empty());
  EXPECT_EQ(node_of(allowed({0, 1}), host.nodes()), 0) << "there is other memory to avoid";
}

TEST(Topology, NodesThatAreOfflineDoNotCount) {
  const FakeSysfs host(
      {{"possible", "0-3\n"}, {"online", "1,3\n"}, {"node1/cpulist", "4-7\n"}, {"node3/cpulist", "8-11\n"}});
  ASSERT_EQ(host.nodes().size(), 2u);
  EXPECT_EQ(node_of(allowed({5, 6}), host.nodes()), 1);
  EXPECT_EQ(node_of(allowed({8}), host.nodes()), 3);
}

TEST(Topology, WhatCannotBeReadIsNoTopology) {
  EXPECT_TRUE(FakeSysfs({}).nodes().empty());
  EXPECT_TRUE(FakeSysfs({{"online", "0-1\n"}, {"node0/cpulist", "0\n"}}).nodes().empty());
  EXPECT_TRUE(FakeSysfs({{"online", "all\n"}, {"node0/cpulist", "0\n"}}).nodes().empty());
  EXPECT_TRUE(FakeSysfs({{"online", "0\n"}, {"node0/cpulist", "3-1\n"}}).nodes().empty());
  EXPECT_EQ(node_of(allowed({0}), {}), std::nullopt);
}

// What the kernel says of a page: its policy, and the nodes in it.
TEST(Topology, ASegmentsPagesPreferTheNodeTheyWereAskedFor) {
  const auto policy_at = [](const Segment& segment, std::size_t offset) {
    int mode = -1;
    unsigned long nodes[16] = {};
    EXPECT_EQ(syscall(SYS_get_mempolicy, &mode, nodes, 1024, segment.data() + offset, MPOL_F_ADDR), 0);
    return std::pair{mode, nodes[0]};
  };
  const auto nodes = numa_nodes();
  ASSERT_FALSE(nodes.empty());
  const int node = nodes.back().id;
  Segment segment(4096, node);
  segment.commit(4096, 1 << 20);
  const Segment anywhere(4096);
  const std::pair<int, unsigned long> wanted{MPOL_PREFERRED, 1UL << node};
  EXPECT_EQ(policy_at(segment, 0), wanted);
  EXPECT_EQ(policy_at(segment, 1 << 20), wanted) << "what is committed later";
  const Segment mapping_of_a_peer(UniqueFd(::dup(segment.fd())));
  EXPECT_EQ(policy_at(mapping_of_a_peer, 4096), wanted);
  EXPECT_EQ(policy_at(anywhere, 0).first, MPOL_DEFAULT);
}

}  // namespace
}  // namespace paceline
