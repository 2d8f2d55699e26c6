#include "paceline/tools/run_memory.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace paceline::tools {
namespace {

/// The files that may hold the count, the likeliest first. Inside a container the path in /proc/self/cgroup may be that
/// of the host, and then the root of the mount is our cgroup.
std::vector<std::string> candidates() {
  std::vector<std::string> v2, v1;
  std::ifstream cgroups("/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {
    // hierarchy-ID:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) v2.push_back("/sys/fs/cgroup" + path + "/memory.events");
    if (controllers == "memory") v1.push_back("/sys/fs/cgroup/memory" + path + "/memory.oom_control");
  }
  v2.insert(v2.end(), v1.begin(), v1.end());
  v2.insert(v2.end(), {"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"});
  return v2;
}

}  // namespace

std::optional<std::uint64_t> count_oom_kills() {
  for (const std::string& path : candidates()) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      std::string name;
      std::uint64_t count = 0;
      if (fields >> name >> count && name == "oom_kill") return count;
    }
  }
  return std::nullopt;
}

}  // namespace paceline::tools
