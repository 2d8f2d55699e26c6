#include "paceline/launch/memory_cgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

namespace paceline::launch {
namespace {

namespace fs = std::filesystem;

// Version 1 says so where there is no limit: all that a signed number of pages holds.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;

/// The folders that may be this process's memory cgroup, the likeliest first. Inside a container the path in
/// /proc/self/cgroup may be that of the host, and then the root of the mount is our cgroup.
std::vector<fs::path> candidates(const fs::path& root) {
  std::vector<fs::path> v2, v1;
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream cgroups(root / "proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {
    // hierarchy-ID:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    const fs::path below = fs::path(path).relative_path();
    if (controllers.empty()) v2.push_back(mount / below);
    if (controllers == "memory") v1.push_back(mount / "memory" / below);
  }
  v2.insert(v2.end(), v1.begin(), v1.end());
  v2.insert(v2.end(), {mount, mount / "memory"});
  return v2;
}

std::optional<std::uint64_t> kills_in(const fs::path& group) {
  for (const char* name : {"memory.events", "memory.oom_control"}) {
    std::ifstream file(group / name);
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      std::string field;
      std::uint64_t count = 0;
      if (fields >> field >> count && field == "oom_kill") return count;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> limit_in(const fs::path& group) {
  for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
    std::ifstream file(group / name);
    std::uint64_t bytes = 0;
    if (file >> bytes && bytes < kNoLimit) return bytes;  // "max" is no number
  }
  return std::nullopt;
}

}  // namespace

MemoryGroup::MemoryGroup(fs::path root) : root_(std::move(root)), kills_(kills()) {}

std::optional<std::uint64_t> MemoryGroup::kills() const {
  for (const fs::path& group : candidates(root_)) {
    if (const auto count = kills_in(group)) return count;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> MemoryGroup::limit() const {
  for (fs::path group : candidates(root_)) {
    if (!kills_in(group)) continue;
    std::optional<std::uint64_t> least;
    for (; group != root_ / "sys/fs" && group.has_relative_path(); group = group.parent_path()) {
      const auto limit = limit_in(group);
      if (limit && (!least || *limit < *least)) least = limit;
    }
    return least;
  }
  return std::nullopt;
}

std::string MemoryGroup::evidence() const {
  const auto now = kills();
  if (!now || !kills_ || *now <= *kills_) return "";
  std::string text = fmt::format("out of memory (the cgroup's oom_kill rose from {} to {}", *kills_, *now);
  if (const auto bytes = limit()) {
    text += fmt::format(", limit {:.1f} {}", static_cast<double>(*bytes) / (*bytes < (1U << 30) ? 1 << 20 : 1 << 30),
                        *bytes < (1U << 30) ? "MiB" : "GiB");
  }
  return text + ")";
}

}  // namespace paceline::launch
