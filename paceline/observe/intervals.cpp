#include "paceline/observe/intervals.h"

#include <algorithm>
#include <utility>

namespace paceline {

IntervalSet::IntervalSet(std::vector<Interval> intervals) : intervals_(std::move(intervals)) {
  std::erase_if(intervals_, [](const Interval& i) { return i.end <= i.begin; });
  std::sort(intervals_.begin(), intervals_.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::size_t kept = 0;
  for (const Interval& next : intervals_) {
    if (kept > 0 && next.begin <= intervals_[kept - 1].end) {
      intervals_[kept - 1].end = std::max(intervals_[kept - 1].end, next.end);
    } else {
      intervals_[kept++] = next;
    }
  }
  intervals_.resize(kept);
}

Nanoseconds IntervalSet::length() const {
  Nanoseconds total{};
  for (const Interval& i : intervals_) total += i.end - i.begin;
  return total;
}

IntervalSet unite(const IntervalSet& a, const IntervalSet& b) {
  std::vector<Interval> all = a.intervals();
  all.insert(all.end(), b.intervals().begin(), b.intervals().end());
  return IntervalSet(std::move(all));
}

IntervalSet intersect(const IntervalSet& a, const IntervalSet& b) {
  std::vector<Interval> common;
  auto i = a.intervals().begin();
  auto j = b.intervals().begin();
  while (i != a.intervals().end() && j != b.intervals().end()) {
    const Interval both{std::max(i->begin, j->begin), std::min(i->end, j->end)};
    if (both.begin < both.end) common.push_back(both);
    // The one that ends first can meet nothing further on.
    if (i->end < j->end) {
      ++i;
    } else {
      ++j;
    }
  }
  return IntervalSet(std::move(common));
}

IntervalSet subtract(const IntervalSet& a, const IntervalSet& b) {
  std::vector<Interval> left;
  auto cut = b.intervals().begin();
  for (Interval rest : a.intervals()) {
    while (cut != b.intervals().end() && cut->end <= rest.begin) ++cut;
    // A cut may reach into the next interval of `a`, so `cut` itself stays where it is.
    for (auto c = cut; c != b.intervals().end() && c->begin < rest.end; ++c) {
      left.push_back({rest.begin, c->begin});
      rest.begin = c->end;
    }
    left.push_back(rest);
  }
  return IntervalSet(std::move(left));
}

}  // namespace paceline
