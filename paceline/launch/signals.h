#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <cerrno>

#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"

namespace paceline::launch {

/// Blocks, for as long as it lives, the signals that the launcher handles: they are read from a signalfd instead, so no
/// code runs in a signal handler. Those that the program was started to ignore (by nohup, by a shell's &) stay ignored.
class BlockedSignals {
 public:
  BlockedSignals() {
    signal(SIGCHLD, SIG_DFL);  // ignored, it would make the kernel forget how workers ended
    sigset_t blocked = handled();
    sigaddset(&blocked, SIGPIPE);  // EPIPE says the same
    sigaddset(&blocked, SIGTTOU);  // the supervisor is in the background of the terminal it prints to
    sigprocmask(SIG_BLOCK, &blocked, &before_);
  }
  ~BlockedSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  /// The mask from before, which workers get.
  const sigset_t& before() const { return before_; }

  static UniqueFd make_signalfd() {
    const sigset_t signals = handled();
    UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd) throw system_error("cannot create a signalfd", errno);
    return fd;
  }

 private:
  static sigset_t handled() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGUSR1, SIGUSR2}) {
      struct sigaction action {};
      sigaction(number, nullptr, &action);
      if (action.sa_handler != SIG_IGN) sigaddset(&set, number);
    }
    return set;
  }

  sigset_t before_{};
};

}  // namespace paceline::launch
