#include "paceline/base/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace paceline {
namespace {

// "0-2,5", as the kernel writes lists; none where it is no such list.
std::optional<std::vector<int>> read_list(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<int> numbers;
  if (!file) return std::nullopt;
  while (file >> std::ws && !file.eof()) {
    int first = 0;
    if (!(file >> first) || first < 0) return std::nullopt;
    int last = first;
    if (file.peek() == '-' && (!(file.ignore() >> last) || last < first)) return std::nullopt;
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    if (file.peek() == ',') file.ignore();
  }
  return numbers;
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::filesystem::path& sysfs) {
  const auto online = read_list(sysfs / "node/online");
  if (!online) return {};
  std::vector<NumaNode> nodes;
  for (const int id : *online) {
    auto cpus = read_list(sysfs / fmt::format("node/node{}/cpulist", id));
    if (!cpus) return {};  // half a picture would put memory in the wrong place
    nodes.push_back({id, std::move(*cpus)});
  }
  return nodes;
}

std::optional<int> node_of(const CpuAllowance& cpus, std::span<const NumaNode> nodes) {
  if (nodes.size() < 2) return std::nullopt;
  std::optional<int> found;
  for (std::size_t cpu = 0; cpu < CpuAllowance::kMaxCpus; ++cpu) {
    if ((cpus.mask[cpu / 64] >> (cpu % 64) & 1) == 0) continue;
    const auto node = std::find_if(nodes.begin(), nodes.end(), [&](const NumaNode& one) {
      return std::find(one.cpus.begin(), one.cpus.end(), static_cast<int>(cpu)) != one.cpus.end();
    });
    if (node == nodes.end() || (found && *found != node->id)) return std::nullopt;
    found = node->id;
  }
  return found;
}

}  // namespace paceline
