#pragma once

#include <cstdint>
#include <vector>

namespace paceline {

/// Percentiles of any number of durations in fixed memory (about 25 KB): counts in buckets whose bounds grow by 1 %.
///
/// A percentile is off by at most 0.5 % of its value, and never lies outside of the smallest and largest duration
/// added. Durations from 1 ns to 100,000 s keep that promise; others are counted in the first or last bucket.
class DurationHistogram {
 public:
  DurationHistogram();

  void add(double duration_s);
  std::uint64_t count() const { return count_; }
  /// The smallest recorded duration that at least `percent` % of all are not above (nearest rank). 0 when empty.
  double percentile(double percent) const;

 private:
  std::vector<std::uint64_t> buckets_;
  std::uint64_t count_ = 0;
  double smallest_ = 0;
  double largest_ = 0;
};

}  // namespace paceline
