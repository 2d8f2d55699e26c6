#include "paceline/base/cpu.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <string>

namespace paceline {
namespace {

// Quota of the cgroup this process sees as its root, in whole processors; `none` where there is none.
int cgroup_quota(int none) {
  std::string quota;
  long period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota >> period) {
    if (quota == "max" || period <= 0) return none;
    return static_cast<int>((std::stol(quota) + period - 1) / period);
  }
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  long limit = 0;
  if (v1_quota >> limit && v1_period >> period && limit > 0 && period > 0) {
    return static_cast<int>((limit + period - 1) / period);
  }
  return none;
}

}  // namespace

CpuAllowance cpu_allowance() {
  CpuAllowance allowance;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) CPU_ZERO(&mask);
  for (std::size_t cpu = 0; cpu < CpuAllowance::kMaxCpus && cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) allowance.mask[cpu / 64] |= std::uint64_t{1} << (cpu % 64);
  }
  allowance.quota = cgroup_quota(CpuAllowance::kMaxCpus);  // no quota, no limit
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
