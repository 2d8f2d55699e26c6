#include "paceline/base/background.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "paceline/base/error.h"

namespace paceline {

std::thread background_thread(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  int error = 0;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error& failure) {
    error = failure.code().value();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) throw system_error("cannot start a thread", error);
  return thread;
}

UniqueFd make_event() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw system_error("cannot create an eventfd", errno);
  return fd;
}

void signal_event(const UniqueFd& event) {
  // Fails only when the counter is full, and then it is readable already.
  [[maybe_unused]] const int result = ::eventfd_write(event.get(), 1);
}

}  // namespace paceline
