#include "paceline/launch/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/base/process_tree.h"
#include "paceline/base/unique_fd.h"
#include "paceline/launch/failure/worker_end.h"
#include "paceline/launch/signals.h"
#include "paceline/launch/supervisor.h"

namespace paceline::launch {
namespace {

void open_standard_descriptors();
int wait_for_supervisor(pid_t supervisor, const UniqueFd& signals);

}  // namespace

int run_launcher(const RunOptions& options) {
  open_standard_descriptors();
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) throw system_error("cannot become a subreaper", errno);
  const BlockedSignals blocked;
  const pid_t launcher = ::getpid();
  std::fflush(nullptr);  // or the supervisor would print it again
  const pid_t supervisor = ::fork();
  if (supervisor < 0) throw system_error("cannot start the supervisor process", errno);
  if (supervisor == 0) std::_Exit(run_supervisor(options, launcher, blocked.before()));

  const int status = wait_for_supervisor(supervisor, blocked.make_signalfd());
  // Nothing is left when the supervisor ended by itself. When it was killed, all its descendants are now ours.
  const std::vector<std::string> survivors = end_descendants([](pid_t, int) {});
  if (WIFSIGNALED(status)) {
    fmt::print(stderr, "paceline: the supervisor of the job was {}; ended all workers\n", describe_status(status));
  }
  for (const std::string& left : survivors) fmt::print(stderr, "paceline: {}\n", left);
  return exit_code_of(status);
}

namespace {

/// A program may be started with these closed. Then the next files opened would take their numbers.
void open_standard_descriptors() {
  while (true) {
    const int fd = ::open("/dev/null", O_RDWR);
    if (fd < 0) throw system_error("cannot open /dev/null", errno);
    if (fd <= 2) continue;
    ::close(fd);
    return;
  }
}

int wait_for_supervisor(pid_t supervisor, const UniqueFd& signals) {
  while (true) {
    pollfd polled{signals.get(), POLLIN, 0};
    if (::poll(&polled, 1, -1) < 0 && errno != EINTR) throw system_error("cannot wait for signals", errno);
    signalfd_siginfo info{};
    while (::read(signals.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo != SIGCHLD) ::kill(supervisor, static_cast<int>(info.ssi_signo));
    }
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid == supervisor) return status;
    }
  }
}

}  // namespace
}  // namespace paceline::launch
