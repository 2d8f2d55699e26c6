#include "paceline/base/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/world.h"

namespace paceline {
namespace {

template <class T>
std::vector<T> reduce_vectors(ReduceOp op, std::vector<std::vector<T>> sources, std::span<const double> weights = {}) {
  const std::size_t count = sources[0].size();
  std::vector<const std::byte*> from;
  for (const auto& source : sources) from.push_back(reinterpret_cast<const std::byte*>(source.data()));
  std::vector<T> result(count), copy(count);
  std::vector<std::byte*> to{reinterpret_cast<std::byte*>(result.data()), reinterpret_cast<std::byte*>(copy.data())};
  reduce(op, dtype_of<T>(), from, to, count, weights);
  EXPECT_EQ(std::memcmp(result.data(), copy.data(), count * sizeof(T)), 0) << "destinations differ";
  return result;
}

TEST(Half, EveryValueSurvivesAndRoundingIsToNearestEven) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    if (std::isnan(value)) EXPECT_TRUE(std::isnan(to_float(to_half(value))));
    else EXPECT_EQ(to_half(value).bits, half.bits) << bits;
    const BFloat16 brain{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(brain))) EXPECT_TRUE(std::isnan(to_float(to_bfloat16(to_float(brain)))));
    else EXPECT_EQ(to_bfloat16(to_float(brain)).bits, brain.bits) << bits;
  }
  EXPECT_EQ(to_half(1.0f + 0x1p-11f).bits, to_half(1.0f).bits);  // a tie goes to the even one
  EXPECT_EQ(to_half(1.0f + 3 * 0x1p-11f).bits, to_half(1.0f + 0x1p-9f).bits);
  EXPECT_EQ(to_half(65520.0f).bits, 0x7C00);
  EXPECT_EQ(to_half(65519.0f).bits, 0x7BFF);
  EXPECT_EQ(to_half(0x1p-25f).bits, 0);
  EXPECT_EQ(to_half(std::nextafter(0x1p-25f, 1.0f)).bits, 1);
  EXPECT_EQ(to_bfloat16(1.0f + 0x1p-8f).bits, to_bfloat16(1.0f).bits);
}

// The vector loops against the scalar conversions, whatever instructions this machine has.
// Every value of 16 bits, at every place in a vector, and floats between them.
TEST(Convert, IsTheScalarConversionOfEachValue) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) values.push_back(to_float(Half{static_cast<std::uint16_t>(bits)}));
  const std::size_t halves = values.size();
  for (std::size_t i = 0; i + 1 < halves; i += 3) values.push_back((values[i] + values[i + 1]) / 2);
  for (const float large : {65520.0f, 1e38f, -3.4e38f, 1e-40f, -0.0f}) values.push_back(large);
  const auto equal = [](float a, float b) {
    return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
  };
  const auto check = [&]<class T>(T, auto&& scalar) {
    std::vector<T> narrow(values.size());
    std::vector<float> wide(values.size());
    convert(Dtype::Float32, std::as_bytes(std::span(values)), dtype_of<T>(), std::as_writable_bytes(std::span(narrow)));
    convert(dtype_of<T>(), std::as_bytes(std::span(narrow)), Dtype::Float32, std::as_writable_bytes(std::span(wide)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(equal(to_float(scalar(values[i])), to_float(narrow[i]))) << values[i];
      ASSERT_TRUE(equal(to_float(narrow[i]), wide[i])) << values[i];
    }
    std::vector<double> doubles(values.begin(), values.end());
    std::vector<T> from_doubles(values.size());
    convert(Dtype::Float64, std::as_bytes(std::span(doubles)), dtype_of<T>(),
            std::as_writable_bytes(std::span(from_doubles)));
    convert(dtype_of<T>(), std::as_bytes(std::span(narrow)), Dtype::Float64,
            std::as_writable_bytes(std::span(doubles)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(equal(to_float(narrow[i]), to_float(from_doubles[i]))) << values[i];
      ASSERT_TRUE(equal(wide[i], static_cast<float>(doubles[i]))) << values[i];
    }
  };
  check(Half{}, [](float v) { return to_half(v); });
  check(BFloat16{}, [](float v) { return to_bfloat16(v); });
}

TEST(Reduce, SixteenBitSumsAreRoundedOnceFromFloat) {
  const std::uint64_t seed = test::seed();
  std::mt19937_64 random(seed);
  std::vector<std::vector<Half>> halves(3, std::vector<Half>(4099));
  std::vector<std::vector<BFloat16>> brains(3, std::vector<BFloat16>(4099));
  for (int s = 0; s < 3; ++s) {
    for (int i = 0; i < 4099; ++i) {
      halves[s][i].bits = static_cast<std::uint16_t>(random());
      brains[s][i].bits = static_cast<std::uint16_t>(random());
    }
  }
  const auto half = reduce_vectors(ReduceOp::Sum, halves);
  const auto brain = reduce_vectors(ReduceOp::Sum, brains);
  for (int i = 0; i < 4099; ++i) {
    const float h = (to_float(halves[0][i]) + to_float(halves[1][i])) + to_float(halves[2][i]);
    const float b = (to_float(brains[0][i]) + to_float(brains[1][i])) + to_float(brains[2][i]);
    if (std::isnan(h)) ASSERT_TRUE(std::isnan(to_float(half[i])));
    else ASSERT_EQ(half[i].bits, to_half(h).bits) << "seed " << seed << " at " << i;
    if (std::isnan(b)) ASSERT_TRUE(std::isnan(to_float(brain[i])));
    else ASSERT_EQ(brain[i].bits, to_bfloat16(b).bits) << "seed " << seed << " at " << i;
  }
}

TEST(Reduce, DoesNotDependOnWhereABufferIsCut) {
  const std::uint64_t seed = test::seed();
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const std::size_t count = 1009;
  std::vector<std::vector<float>> sources(5, std::vector<float>(count));
  for (auto& source : sources) {
    for (float& x : source) x = normal(random);
  }
  const double weights[] = {1, 2.5, 0, 3, 0.125};
  const auto whole = reduce_vectors(ReduceOp::Mean, sources);
  const auto weighted = reduce_vectors<float>(ReduceOp::Mean, sources, weights);
  for (int round = 0; round < 50; ++round) {
    std::size_t at = 0;
    while (at < count) {
      const std::size_t piece = std::min<std::size_t>(count - at, random() % 200 + 1);
      std::vector<std::vector<float>> part;
      for (const auto& source : sources) part.emplace_back(source.begin() + at, source.begin() + at + piece);
      const auto a = reduce_vectors(ReduceOp::Mean, part);
      const auto b = reduce_vectors<float>(ReduceOp::Mean, part, weights);
      ASSERT_EQ(std::memcmp(a.data(), whole.data() + at, piece * sizeof(float)), 0) << "seed " << seed;
      ASSERT_EQ(std::memcmp(b.data(), weighted.data() + at, piece * sizeof(float)), 0) << "seed " << seed;
      at += piece;
    }
  }
}

TEST(Reduce, WeightedMeanLeavesOutWhatWeighsNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const double weights[] = {3, 0, 1};
  EXPECT_EQ(reduce_vectors<float>(ReduceOp::Mean, {{4}, {nan}, {8}}, weights)[0], 5.0f);
  const double none[] = {0, 0};
  EXPECT_EQ(reduce_vectors<float>(ReduceOp::Mean, {{nan}, {nan}}, none)[0], 0.0f);
  EXPECT_EQ(reduce_vectors<std::int32_t>(ReduceOp::Mean, {{4}, {100}, {8}}, weights)[0], 5);
}

// What a float, or their sum a double, cannot hold: only how weights compare counts.
// The undefined-behaviour sanitizer looks on.
TEST(Reduce, OfNothingTouchesNothing) {
  std::byte* const nowhere[] = {nullptr};
  const std::byte* const sources[] = {nullptr};
  for (const double weight : {0.0, 1.0, 2.0}) {
    const double weights[] = {weight};
    reduce(ReduceOp::Mean, Dtype::Float32, sources, nowhere, 0, weights);
  }
}

TEST(Reduce, WeightedMeanTakesWeightsOfAnySize) {
  for (const double size : {5e-324, 1e-310, 1e-46, 1e-3, 1.0, 1e39, 1e300, std::numeric_limits<double>::max() / 4}) {
    const double weights[] = {size, 3 * size};
    EXPECT_FLOAT_EQ(reduce_vectors<float>(ReduceOp::Mean, {{4}, {8}}, weights)[0], 7.0f) << size;
    EXPECT_DOUBLE_EQ(reduce_vectors<double>(ReduceOp::Mean, {{4}, {8}}, weights)[0], 7.0) << size;
    EXPECT_EQ(to_float(reduce_vectors<Half>(ReduceOp::Mean, {{to_half(4)}, {to_half(8)}}, weights)[0]), 7.0f) << size;
    EXPECT_NEAR(reduce_vectors<std::int32_t>(ReduceOp::Mean, {{4}, {8}}, weights)[0], 7, 1) << size;
  }
  const double apart[] = {1e-46, 1e39}, most = std::numeric_limits<double>::max();
  EXPECT_FLOAT_EQ(reduce_vectors<float>(ReduceOp::Mean, {{4}, {8}}, apart)[0], 8.0f);
  const double largest[] = {most, most / 2, most};
  EXPECT_FLOAT_EQ(reduce_vectors<float>(ReduceOp::Mean, {{5}, {0}, {5}}, largest)[0], 4.0f);
}

TEST(Reduce, WeightedMeanOfLargeValuesIsFiniteWhereItIs) {
  const double samples[] = {1000, 3000};
  const float large = 0x1p127f;
  EXPECT_EQ(reduce_vectors<float>(ReduceOp::Mean, {{large}, {large}}, samples)[0], large);
}

TEST(Reduce, WeightedMeanHasTheSameBitsWhateverTheWeightsUnit) {
  const std::uint64_t seed = test::seed();
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> sources(3, std::vector<float>(1009));
  for (auto& source : sources) {
    for (float& x : source) x = normal(random);
  }
  const double weights[] = {1, 2.7, 0.3};
  const auto expected = reduce_vectors(ReduceOp::Mean, sources, weights);
  for (const int power : {-1000, -200, -3, 5, 200, 1000}) {
    double scaled[3];
    for (int i = 0; i < 3; ++i) scaled[i] = std::ldexp(weights[i], power);
    EXPECT_EQ(reduce_vectors(ReduceOp::Mean, sources, scaled), expected) << power << " PACELINE_TEST_SEED=" << seed;
  }
}

TEST(Reduce, MinAndMaxKeepANaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (int position = 0; position < 3; ++position) {
    std::vector<std::vector<float>> sources(3, std::vector<float>(37, 1.0f));
    sources[position].assign(37, nan);
    for (const float x : reduce_vectors(ReduceOp::Min, sources)) EXPECT_TRUE(std::isnan(x)) << position;
    for (const float x : reduce_vectors(ReduceOp::Max, sources)) EXPECT_TRUE(std::isnan(x)) << position;
  }
  EXPECT_EQ(reduce_vectors<float>(ReduceOp::Min, {{1}, {-inf}})[0], -inf);
  EXPECT_EQ(reduce_vectors<float>(ReduceOp::Max, {{1}, {inf}})[0], inf);
  EXPECT_TRUE(std::isnan(reduce_vectors<float>(ReduceOp::Sum, {{inf}, {-inf}})[0]));
}

TEST(Reduce, IntegerMeansAreExactAndRoundTowardZero) {
  const auto big = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduce_vectors<std::int64_t>(ReduceOp::Mean, {{big}, {big}, {big}})[0], big);
  EXPECT_EQ(reduce_vectors<std::int32_t>(ReduceOp::Mean, {{-3}, {-4}})[0], -3);
  EXPECT_EQ(reduce_vectors<std::uint8_t>(ReduceOp::Mean, {{255}, {254}})[0], 254);
}

}  // namespace
}  // namespace paceline
