#include "paceline/observe/histogram.h"

#include <algorithm>
#include <cmath>

namespace paceline {
namespace {

constexpr double kSmallest = 1e-9;
constexpr double kLargest = 1e5;
constexpr double kGrowth = 1.01;

std::size_t bucket_of(double duration_s) {
  const double inside = std::clamp(duration_s, kSmallest, kLargest);
  return static_cast<std::size_t>(std::log(inside / kSmallest) / std::log(kGrowth));
}

/// Halfway between the bounds on the logarithmic scale, so that the error is the same at both.
double middle_of(std::size_t bucket) { return kSmallest * std::pow(kGrowth, static_cast<double>(bucket) + 0.5); }

}  // namespace

DurationHistogram::DurationHistogram() : buckets_(bucket_of(kLargest) + 1) {}

void DurationHistogram::add(double duration_s) {
  ++buckets_[bucket_of(duration_s)];
  smallest_ = count_ == 0 ? duration_s : std::min(smallest_, duration_s);
  largest_ = count_ == 0 ? duration_s : std::max(largest_, duration_s);
  ++count_;
}

double DurationHistogram::percentile(double percent) const {
  if (count_ == 0) return 0;
  const double share = std::ceil(percent / 100.0 * static_cast<double>(count_));
  const auto wanted = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(std::max(1.0, share)), 1, count_);
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    seen += buckets_[bucket];
    if (seen >= wanted) return std::clamp(middle_of(bucket), smallest_, largest_);
  }
  return largest_;
}

}  // namespace paceline
