#pragma once

namespace paceline {

/// Processors that this process may use: its affinity mask, cut to the cgroup's CPU quota where there is one.
int usable_cpus();

}  // namespace paceline
