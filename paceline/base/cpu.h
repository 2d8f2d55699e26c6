#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace paceline {

/// Processors that a process may use: those of its affinity mask, as many at once as its cgroup's CPU quota allows.
/// Plain data, so that processes can show it to each other.
struct CpuAllowance {
  static constexpr std::size_t kMaxCpus = 1024;
  std::array<std::uint64_t, kMaxCpus / 64> mask{};
  std::int32_t quota = 0;  ///< Whole processors, rounded up.
};

/// Of this process. `root` is where its /proc and /sys/fs/cgroup are.
CpuAllowance cpu_allowance(const std::filesystem::path& root = "/");

/// Processors that processes of one host can use at once, between them; at least 1.
int usable_cpus(std::span<const CpuAllowance> of);
/// Processors that this process may use.
int usable_cpus();

}  // namespace paceline
