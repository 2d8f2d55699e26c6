#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

/// What /proc/PID/stat says of a process.
struct Process {
  pid_t pid, parent;
  char state;                  // R, S, D, T, t, Z as proc(5) has them
  unsigned long long started;  // with the pid, this names a process for good
};

/// Whether /proc shows this process's PID namespace: after `unshare --pid` or chroot it may be another one's, where the
/// same numbers are other processes, or not be there.
bool proc_is_own();

/// Nothing if it has ended, or where /proc is not our own.
std::optional<Process> read_process(pid_t pid);

struct Reaped {
  pid_t pid;
  int status;
};
/// Reaps a child that has ended; nothing if none has. Where /proc cannot show what it leaves behind, the rest of its
/// process group, if it led one, is killed before its number may become another process's.
std::optional<Reaped> reap_child();

/// Kills every descendant of this process with SIGKILL, in whatever group or session it is, and reaps those that are or
/// become its children. `on_reaped` gets the pid and wait status of each. The caller must be a subreaper, or
/// grandchildren escape. Returns what to tell of those that are still there after ten seconds: nothing, but for those
/// that the kernel does not let go or that belong to another user. Where /proc is not our own, process groups of
/// children are ended, and what is in none of them is told of.
std::vector<std::string> end_descendants(const std::function<void(pid_t, int)>& on_reaped);

}  // namespace paceline
