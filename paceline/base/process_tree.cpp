#include "paceline/base/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_set>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"

namespace paceline {
namespace {

constexpr std::chrono::seconds kPatience{10}, kPatienceWithoutProc{3};

bool has_children();
std::optional<Process> process_in_proc(pid_t pid);
std::vector<Process> living_descendants();
std::vector<Process> all_processes();
void kill_process(const Process& process);

}  // namespace

std::vector<std::string> end_descendants(const std::function<void(pid_t, int)>& on_reaped) {
  const bool sees_all = proc_is_own();
  const Deadline deadline(sees_all ? kPatience : kPatienceWithoutProc);
  while (true) {
    // Once more after each round: a process may have forked while we looked.
    const std::vector<Process> living = sees_all ? living_descendants() : std::vector<Process>();
    for (const Process& process : living) kill_process(process);
    while (const auto reaped = reap_child()) on_reaped(reaped->pid, reaped->status);
    if (living.empty() && !has_children()) return {};
    if (deadline.passed()) {
      std::vector<std::string> left;
      for (const Process& process : living) left.push_back(fmt::format("process {} could not be ended", process.pid));
      if (!sees_all) {
        left.emplace_back(
            "processes that a worker has started in a process group of their own may be left, since /proc does not "
            "show this PID namespace; mount it anew (unshare --mount-proc) to have them ended");
      }
      return left;
    }
    ::poll(nullptr, 0, 1);
  }
}

bool proc_is_own() {
  // The numbers of this process from the namespace that /proc shows down to its own.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("NSpid:")) continue;
    std::istringstream numbers(line.substr(6));
    pid_t first = 0, further = 0;
    return numbers >> first && first == ::getpid() && !(numbers >> further);
  }
  char self[16] = "";  // of a system that does not say
  return ::readlink("/proc/self", self, sizeof self - 1) > 0 && std::atoi(self) == ::getpid();
}

std::optional<Reaped> reap_child() {
  pid_t which = -1;
  if (!proc_is_own()) {
    siginfo_t ended{};
    if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return std::nullopt;
    ::kill(-ended.si_pid, SIGKILL);
    which = ended.si_pid;
  }
  Reaped child{};
  child.pid = ::waitpid(which, &child.status, WNOHANG);
  return child.pid > 0 ? std::optional(child) : std::nullopt;
}

std::optional<Process> read_process(pid_t pid) {
  if (!proc_is_own()) return std::nullopt;
  return process_in_proc(pid);
}

namespace {

bool has_children() {
  siginfo_t ignored{};
  return ::waitid(P_ALL, 0, &ignored, WEXITED | WNOHANG | WNOWAIT) == 0;
}

std::optional<Process> process_in_proc(pid_t pid) {
  const UniqueFd file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;  // it ended meanwhile
  char text[1024];
  const ssize_t length = ::read(file.get(), text, sizeof(text) - 1);
  if (length <= 0) return std::nullopt;
  text[length] = '\0';
  // The name, in parentheses, may hold anything; fields are counted from its end. Field 3 is the state, 22 the start.
  const std::size_t name_end = std::string_view(text).rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  Process process{pid, 0, '?', 0};
  if (std::sscanf(text + name_end + 1,
                  " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &process.state,
                  &process.parent, &process.started) != 3) {
    return std::nullopt;
  }
  return process;
}

std::vector<Process> living_descendants() {
  const std::vector<Process> all = all_processes();
  std::unordered_set<pid_t> family{::getpid()};
  // A parent need not stand before its child: pids wrap around and orphans are adopted.
  for (std::size_t size = 0; size != family.size();) {
    size = family.size();
    for (const Process& process : all) {
      if (family.contains(process.parent)) family.insert(process.pid);
    }
  }
  std::vector<Process> descendants;
  for (const Process& process : all) {
    if (process.pid != ::getpid() && process.state != 'Z' && family.contains(process.pid)) {
      descendants.push_back(process);
    }
  }
  return descendants;
}

std::vector<Process> all_processes() {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc"), ::closedir);
  if (!directory) throw system_error("cannot read /proc", errno);
  std::vector<Process> all;
  while (const dirent* entry = ::readdir(directory.get())) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    if (const auto process = process_in_proc(pid)) all.push_back(*process);
  }
  return all;
}

void kill_process(const Process& process) {
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!handle) {
    if (errno == ESRCH) return;  // it ended meanwhile
    throw system_error(fmt::format("cannot get a handle of process {}", process.pid), errno);
  }
  // The handle may be of a newcomer with the same pid. It is not if the process we saw is still there now.
  const auto again = process_in_proc(process.pid);
  if (again && again->started == process.started) ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0);
}

}  // namespace
}  // namespace paceline
