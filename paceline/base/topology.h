#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "paceline/base/cpu.h"

namespace paceline {

/// Memory and processors that are near each other (NUMA).
struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  ///< Empty where a node is memory only.
};

/// The nodes of this host that are online, as the kernel describes them below `sysfs`. Empty where it does not, or not
/// readably: then nothing is near or far.
std::vector<NumaNode> numa_nodes(const std::filesystem::path& sysfs = "/sys/devices/system");

/// The one of several nodes that all these processors belong to; none where they belong to more than one, or where
/// there is no choice.
std::optional<int> node_of(const CpuAllowance& cpus, std::span<const NumaNode> nodes);

}  // namespace paceline
