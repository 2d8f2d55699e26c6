#pragma once

#include <vector>

#include "paceline/base/clock.h"

namespace paceline {

/// The time from `begin` up to, but not including, `end`. Empty when `end` <= `begin`.
struct Interval {
  Nanoseconds begin, end;
  bool operator==(const Interval&) const = default;
};

/// A set of points in time. Questions such as "how long did communication and compute run at once" are asked of sets
/// rather than of sums of durations, so that nothing is counted twice when intervals overlap and no gap is counted.
class IntervalSet {
 public:
  IntervalSet() = default;
  /// The union of `intervals`, which may overlap, be empty and come in any order. O(n log n).
  explicit IntervalSet(std::vector<Interval> intervals);

  /// Sorted and not empty; two neighbours neither overlap nor touch. Equal sets therefore have equal intervals.
  const std::vector<Interval>& intervals() const { return intervals_; }
  bool empty() const { return intervals_.empty(); }
  /// The time covered.
  Nanoseconds length() const;
  bool operator==(const IntervalSet&) const = default;

 private:
  std::vector<Interval> intervals_;
};

/// Points in `a`, in `b` or in both.
IntervalSet unite(const IntervalSet& a, const IntervalSet& b);
/// Points in both. O(n + m).
IntervalSet intersect(const IntervalSet& a, const IntervalSet& b);
/// Points in `a` that are not in `b`. O(n + m).
IntervalSet subtract(const IntervalSet& a, const IntervalSet& b);

}  // namespace paceline
