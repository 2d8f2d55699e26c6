#pragma once

#include <chrono>

namespace paceline {

/// Monotonic, and the same for all processes of a host (CLOCK_MONOTONIC), so that timestamps of local ranks compare.
using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

/// Time since the clock's origin.
inline Nanoseconds now() { return Clock::now().time_since_epoch(); }

inline double seconds(Nanoseconds t) { return std::chrono::duration<double>(t).count(); }

/// A point in time at which a wait gives up.
class Deadline {
 public:
  explicit Deadline(Nanoseconds from_now) : at_(now() + from_now) {}
  Nanoseconds left() const { return at_ - now(); }
  bool passed() const { return left() <= Nanoseconds::zero(); }

 private:
  Nanoseconds at_;
};

}  // namespace paceline
