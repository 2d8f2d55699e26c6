#pragma once

#include <signal.h>

#include <map>

#include "paceline/base/clock.h"

namespace paceline::launch {

/// SIGUSR1 or SIGUSR2, which have no meaning for the launcher and go to all workers of the job, from the launcher to
/// which it came.
struct UserSignal {
  int number = SIGUSR1;
  int node = 0;  ///< That launcher's.

  static bool is(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }
  const char* name() const { return number == SIGUSR1 ? "SIGUSR1" : "SIGUSR2"; }
};

/// A scheduler that warns of the end of a job signals all of its launchers at once, and means one signal.
class UserSignals {
 public:
  static constexpr Nanoseconds kAtOnce = std::chrono::seconds(1);

  /// Whether the workers are to have it: not if one of the same number has just come to another launcher.
  bool is_new(const UserSignal& signal, Nanoseconds at) {
    const auto last = last_.find(signal.number);
    if (last != last_.end() && last->second.node != signal.node && at - last->second.at < kAtOnce) return false;
    last_.insert_or_assign(signal.number, Last{signal.node, at});
    return true;
  }

 private:
  struct Last {
    int node;
    Nanoseconds at;
  };
  std::map<int, Last> last_;
};

}  // namespace paceline::launch
