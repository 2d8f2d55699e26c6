#include "paceline/observe/intervals.h"

#include <gtest/gtest.h>

#include <bitset>
#include <random>

namespace paceline {
namespace {

constexpr int kPoints = 64;
using Bitmap = std::bitset<kPoints>;

std::vector<Interval> random_intervals(std::mt19937& random) {
  std::uniform_int_distribution<int> point(0, kPoints);
  std::vector<Interval> intervals(random() % 9);
  // Ends are drawn freely, so some intervals are empty or end before they begin.
  for (Interval& i : intervals) i = {Nanoseconds(point(random)), Nanoseconds(point(random))};
  return intervals;
}

Bitmap bitmap(const std::vector<Interval>& intervals) {
  Bitmap bits;
  for (const Interval& i : intervals) {
    for (auto t = i.begin; t < i.end; ++t) bits.set(static_cast<std::size_t>(t.count()));
  }
  return bits;
}

/// Equal to the bitmap, in normal form and as long as the bitmap has bits.
void expect_is(const IntervalSet& set, const Bitmap& bits) {
  EXPECT_EQ(bitmap(set.intervals()), bits);
  EXPECT_EQ(set.length().count(), static_cast<std::int64_t>(bits.count()));
  EXPECT_EQ(set.empty(), bits.none());
  const auto& list = set.intervals();
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_LT(list[i].begin, list[i].end);
    if (i > 0) {
      EXPECT_LT(list[i - 1].end, list[i].begin);
    }
  }
}

TEST(Intervals, AgreeWithABitmap) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto x = random_intervals(random), y = random_intervals(random);
    const IntervalSet a(x), b(y);
    expect_is(a, bitmap(x));
    expect_is(unite(a, b), bitmap(x) | bitmap(y));
    expect_is(intersect(a, b), bitmap(x) & bitmap(y));
    expect_is(subtract(a, b), bitmap(x) & ~bitmap(y));
    if (HasFailure()) return;
  }
}

TEST(Intervals, KeepTheLawsOfSets) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const IntervalSet a(random_intervals(random)), b(random_intervals(random)), c(random_intervals(random));
    EXPECT_EQ(unite(intersect(a, b), subtract(a, b)), a);
    EXPECT_EQ(unite(a, b).length() + intersect(a, b).length(), a.length() + b.length());
    EXPECT_EQ(intersect(a, unite(b, c)), unite(intersect(a, b), intersect(a, c)));
    EXPECT_EQ(subtract(a, unite(b, c)), subtract(subtract(a, b), c));
    if (HasFailure()) return;
  }
}

TEST(Intervals, EmptyHasNoLength) {
  EXPECT_EQ(IntervalSet().length(), Nanoseconds::zero());
  EXPECT_TRUE(intersect(IntervalSet(), IntervalSet({{Nanoseconds(0), Nanoseconds(5)}})).empty());
}

}  // namespace
}  // namespace paceline
