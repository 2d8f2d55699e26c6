#include "paceline/base/cpu.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <string>

namespace paceline {
namespace {

namespace fs = std::filesystem;

// Of one group, in whole processors; kMaxCpus where there is no quota. Version 2 has it in one file, version 1 in two.
int quota_of(const fs::path& group) {
  long limit = 0, period = 0;
  if (std::ifstream v2(group / "cpu.max"); v2) {
    v2 >> limit >> period;  // "max" is no number
  } else {
    std::ifstream(group / "cpu.cfs_quota_us") >> limit;  // -1: none
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  if (limit <= 0 || period <= 0) return CpuAllowance::kMaxCpus;
  const long processors = limit / period + (limit % period != 0 ? 1 : 0);
  return static_cast<int>(std::min<long>(processors, CpuAllowance::kMaxCpus));
}

// The least of `group` and of those above it, which hold for it too. Inside a container its name may be that of the
// host, and then the root of the mount is our group.
int least_quota(const fs::path& mount, const fs::path& group) {
  int least = quota_of(mount);
  fs::path at = mount;
  for (const fs::path& name : group.relative_path()) least = std::min(least, quota_of(at /= name));
  return least;
}

int cgroup_quota(const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  int least = CpuAllowance::kMaxCpus;
  for (const char* controller : {"", "cpu", "cpu,cpuacct"}) least = std::min(least, quota_of(mount / controller));
  std::ifstream cgroups(root / "proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {
    // hierarchy-ID:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      // Beside version 1, version 2 has a mount of its own.
      least = std::min({least, least_quota(mount, group), least_quota(mount / "unified", group)});
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      least = std::min({least, least_quota(mount / "cpu", group), least_quota(mount / controllers, group)});
    }
  }
  return least;
}

}  // namespace

CpuAllowance cpu_allowance(const std::filesystem::path& root) {
  CpuAllowance allowance;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) CPU_ZERO(&mask);
  for (std::size_t cpu = 0; cpu < CpuAllowance::kMaxCpus && cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) allowance.mask[cpu / 64] |= std::uint64_t{1} << (cpu % 64);
  }
  allowance.quota = cgroup_quota(root);
  return allowance;
}

int usable_cpus(std::span<const CpuAllowance> of) {
  CpuAllowance all;
  // Workers of one job share their cgroup, so the largest quota is the quota of all of them.
  for (const CpuAllowance& one : of) {
    for (std::size_t word = 0; word < all.mask.size(); ++word) all.mask[word] |= one.mask[word];
    all.quota = std::max(all.quota, one.quota);
  }
  int cpus = 0;
  for (const std::uint64_t word : all.mask) cpus += std::popcount(word);
  return std::max(1, std::min(cpus, all.quota));
}

int usable_cpus() {
  const CpuAllowance own = cpu_allowance();
  return usable_cpus(std::span(&own, 1));
}

}  // namespace paceline
