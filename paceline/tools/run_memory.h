#pragma once

#include <cstdint>
#include <optional>

namespace paceline::tools {

/// How many processes of this process's cgroup the kernel has killed because memory ran out. Nothing where the system
/// does not tell.
std::optional<std::uint64_t> count_oom_kills();

}  // namespace paceline::tools
