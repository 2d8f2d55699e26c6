#pragma once

#include "paceline/base/clock.h"

namespace paceline::launch {

/// For how long nothing was heard from somebody, as far as this process was there to hear it. A look that comes late
/// says that this process itself did not run (stopped, or on a suspended machine), and counting starts anew.
class Silence {
 public:
  /// How far looks may be apart.
  static constexpr Nanoseconds kLate = std::chrono::milliseconds(1500);

  explicit Silence(Nanoseconds now) : since_(now), looked_(now) {}

  void heard(Nanoseconds now) { since_ = now; }
  /// Counts the time until `now`, which comes from the monotonic clock, and gives the silence so far.
  Nanoseconds look(Nanoseconds now) {
    if (now - looked_ > kLate) since_ = now;
    looked_ = now;
    return now - since_;
  }

 private:
  Nanoseconds since_, looked_;
};

}  // namespace paceline::launch
