#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace paceline::launch {

/// The memory cgroup of this process, version 1 or 2: how many of its processes the kernel has killed because memory
/// ran out, and what its limit is. Nothing where the system does not tell.
class MemoryGroup {
 public:
  /// Remembers how many there were. `root` is where /proc and /sys are.
  explicit MemoryGroup(std::filesystem::path root = "/");

  std::optional<std::uint64_t> kills() const;
  /// The tightest limit of the group and those above it, as far as they can be seen, in bytes.
  std::optional<std::uint64_t> limit() const;
  /// "out of memory (the cgroup's oom_kill rose from 0 to 1, limit 2.0 GiB)" if there are more kills now; else empty.
  std::string evidence() const;

 private:
  const std::filesystem::path root_;
  const std::optional<std::uint64_t> kills_;
};

}  // namespace paceline::launch
