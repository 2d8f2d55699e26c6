#include "paceline/base/cpu.h"

#include <sched.h>

#include <algorithm>
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

int usable_cpus() {
  cpu_set_t mask;
  const int allowed = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
  return std::max(1, std::min(allowed, cgroup_quota(allowed)));
}

}  // namespace paceline
