// NaN and infinity in every type, at every place.
#include "paceline/base/finite.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace paceline {
namespace {

template <class T>
std::optional<std::size_t> look(const std::vector<T>& values) {
  return first_not_finite(dtype_of<T>(), std::as_bytes(std::span(values)));
}

template <class T>
void check_places(T fine, const std::vector<T>& bad) {
  for (const std::size_t count : {0, 1, 7, 4095, 4096, 4097, 10000}) {
    std::vector<T> values(count, fine);
    EXPECT_FALSE(look(values)) << count;
    for (const T& value : bad) {
      for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        if (count == 0) continue;
        values.assign(count, fine);
        values[at] = value;
        values.back() = value;
        EXPECT_EQ(look(values), at);
      }
    }
  }
}

TEST(Finite, FindsTheFirstBadElementOfEachType) {
  check_places<float>(std::numeric_limits<float>::max(),
                      {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::signaling_NaN()});
  check_places<double>(-std::numeric_limits<double>::max(),
                       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()});
}

TEST(Finite, KnowsHalfAndBFloat16) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(look(std::vector<Half>{to_half(65504), to_half(bad)}), 1u);
    EXPECT_EQ(look(std::vector<BFloat16>{to_bfloat16(3e38f), to_bfloat16(bad)}), 1u);
  }
}

TEST(Finite, IntegersAlwaysAre) { EXPECT_FALSE(look(std::vector<std::int32_t>(100, -1))); }

}  // namespace
}  // namespace paceline
