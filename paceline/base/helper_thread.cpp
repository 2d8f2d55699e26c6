#include "paceline/base/helper_thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "paceline/base/error.h"

namespace paceline {
namespace {

/// What a thread is started under, it keeps.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

std::thread start_helper_thread(std::function<void()> body) {
  const AllSignalsBlocked blocked;
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw system_error("cannot start a thread", error.code().value());
  }
}

}  // namespace paceline
