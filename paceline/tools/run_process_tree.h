#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <vector>

namespace paceline::tools {

/// What /proc/PID/stat says of a process.
struct Process {
  pid_t pid, parent;
  char state;                  // R, S, D, T, t, Z as proc(5) has them
  unsigned long long started;  // with the pid, this names a process for good
};

/// Nothing if it has ended.
std::optional<Process> read_process(pid_t pid);

/// Kills every descendant of this process with SIGKILL, in whatever group or session it is, and reaps those that are or
/// become its children. `on_reaped` gets the pid and wait status of each. The caller must be a subreaper, or
/// grandchildren escape. Returns the processes that are still there after ten seconds: none, but for those that the
/// kernel does not let go or that belong to another user.
std::vector<pid_t> end_descendants(const std::function<void(pid_t, int)>& on_reaped);

}  // namespace paceline::tools
