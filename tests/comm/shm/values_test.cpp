// Values over shared memory: what IEEE says, whichever algorithm and whichever rank; and the same bits in worlds of
// threads and of processes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <vector>

#include "paceline/base/hash.h"
#include "tests/support/launched_job.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::OneShot, Algorithm::Slices, Algorithm::ChunkQueue};
constexpr Dtype kFloatTypes[] = {Dtype::Float32, Dtype::Float64, Dtype::Float16, Dtype::BFloat16};
constexpr ReduceOp kOps[] = {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max};

std::vector<std::byte> reduced(const Comm& comm, Dtype dtype, ReduceOp op, Algorithm algorithm,
                               std::span<const std::byte> own, double weight = 1) {
  const Buffer buffer = comm.allocate(own.size());
  std::memcpy(buffer.data(), own.data(), own.size());
  comm.run({.kind = Collective::AllReduce,
            .dtype = dtype,
            .reduce = op,
            .algorithm = algorithm,
            .count = own.size() / size_of(dtype),
            .in = buffer.data(),
            .out = buffer.data(),
            .weight = weight});
  return {buffer.data(), buffer.data() + own.size()};
}

template <class T>
std::vector<T> reduced(const Comm& comm, ReduceOp op, Algorithm algorithm, const std::vector<T>& own) {
  const auto bytes = reduced(comm, dtype_of<T>(), op, algorithm, std::as_bytes(std::span(own)));
  std::vector<T> values(own.size());
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Any bits: numbers of all sizes, infinities, many NaNs with different payloads. Small counts fit one shot.
std::vector<std::byte> any_bits(std::uint64_t seed, int rank, std::size_t bytes) {
  std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(rank));
  std::vector<std::byte> data(bytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  // Exponents of all ones are rare in wide types.
  for (std::size_t at = 0; at + 8 <= bytes; at += 8 * (1 + random() % 16)) {
    data[at + 7] = std::byte{0x7F};
    data[at + 6] |= std::byte{0xF0};
  }
  return data;
}

template <class T, class IsNan>
void replace(std::vector<std::byte>& data, T by, IsNan&& is_nan) {
  for (std::size_t at = 0; at + sizeof(T) <= data.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, data.data() + at, sizeof value);
    if (is_nan(value)) std::memcpy(data.data() + at, &by, sizeof by);
  }
}

/// With all NaNs alike. Which one's payload comes out of a sum of two, IEEE leaves to the processor, and it depends on
/// the order in which the compiler gives them to it, which is not the same in a vector and in a tail.
std::vector<std::byte> with_one_nan(Dtype dtype, std::vector<std::byte> data) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto is_nan = [](auto value) { return std::isnan(value); };
  const auto is_small_nan = [](auto value) { return std::isnan(to_float(value)); };
  switch (dtype) {
    case Dtype::Float32: replace(data, nan, is_nan); break;
    case Dtype::Float64: replace(data, double{nan}, is_nan); break;
    case Dtype::Float16: replace(data, to_half(nan), is_small_nan); break;
    case Dtype::BFloat16: replace(data, to_bfloat16(nan), is_small_nan); break;
    default: throw std::logic_error("no type with NaNs");
  }
  return data;
}

void require_equal(Dtype dtype, ReduceOp op, Algorithm algorithm, const std::vector<std::byte>& result,
                   const std::vector<std::byte>& first) {
  if (with_one_nan(dtype, result) == with_one_nan(dtype, first)) return;
  throw std::runtime_error(fmt::format("wrong: {} differs from other algorithms in {} of {} bytes of {}",
                                       to_string(algorithm), to_string(op), first.size(), to_string(dtype)));
}

/// A hash of what all kinds of reductions of any_bits() give on this rank. With the same seed, the same on all ranks.
std::uint64_t hash_of_results(const Comm& comm, std::uint64_t seed) {
  std::vector<std::uint64_t> hashes;
  for (const Dtype dtype : kFloatTypes) {
    for (const ReduceOp op : kOps) {
      for (const std::size_t bytes : {8, 104, 1000, 1024}) {
        const auto own = any_bits(seed, comm.rank(), bytes);
        const auto one_shot = reduced(comm, dtype, op, Algorithm::OneShot, own);
        hashes.push_back(hash_of(one_shot));
        for (const Algorithm algorithm : {Algorithm::Slices, Algorithm::ChunkQueue}) {
          const auto result = reduced(comm, dtype, op, algorithm, own);
          require_equal(dtype, op, algorithm, result, one_shot);
          hashes.push_back(hash_of(result));
        }
      }
      // Several chunks, and slices that end anywhere.
      const auto own = any_bits(seed, comm.rank(), 300'000 + 8 * (seed % 50));
      const auto slices = reduced(comm, dtype, op, Algorithm::Slices, own);
      const auto by_chunks = reduced(comm, dtype, op, Algorithm::ChunkQueue, own);
      require_equal(dtype, op, Algorithm::ChunkQueue, by_chunks, slices);
      hashes.push_back(hash_of(slices));
      hashes.push_back(hash_of(by_chunks));
    }
  }
  return hash_of(std::as_bytes(std::span(hashes)));
}

TEST(Values, AreTheSameBitsOnAllRanksByAllAlgorithmsInThreadsAndProcesses) {
  const std::uint64_t seed = test::seed() % 1'000'000;
  SCOPED_TRACE("PACELINE_TEST_SEED=" + std::to_string(seed));
  for (const int world : {2, 3, 5}) {
    std::mutex mutex;
    std::vector<std::uint64_t> hashes;
    test::on_ranks(world, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      const std::uint64_t hash = hash_of_results(comm, seed);
      const std::lock_guard lock(mutex);
      hashes.push_back(hash);
    });
    for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]) << "ranks differ";
    Job job(run_worker(world, "HashesResults"), {.environment = {{"TEST_SEED", std::to_string(seed)}}});
    ASSERT_EQ(job.wait(), 0) << job.out() << job.err();
    EXPECT_EQ(count(job.out(), fmt::format("hash {:016x}", hashes[0])), static_cast<std::size_t>(world)) << job.out();
  }
}

TEST(Worker, DISABLED_HashesResults) {
  const Comm comm = Comm::from_env();
  fmt::print("hash {:016x}\n", hash_of_results(comm, std::stoull(std::getenv("TEST_SEED"))));
}

/// Calls `body` with each algorithm on 3 ranks.
void with_each_algorithm(const std::function<void(const Comm&, Algorithm)>& body) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    for (const Algorithm algorithm : kAlgorithms) body(comm, algorithm);
  });
}

template <class T>
T from_float(float value) {
  if constexpr (std::is_same_v<T, Half>) return to_half(value);
  else if constexpr (std::is_same_v<T, BFloat16>) return to_bfloat16(value);
  else return static_cast<T>(value);
}

template <class T>
double to_double(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) return to_float(value);
  else return value;
}

template <class T>
class FloatValues : public testing::Test {};
using FloatTypes = testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(FloatValues, FloatTypes);

TYPED_TEST(FloatValues, MinAndMaxLoseNoNaNWhicheverRankHasItAndWhereverItIs) {
  const auto nan = from_float<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  constexpr std::size_t kCount = 77;  // whole vectors, and a tail
  with_each_algorithm([&](const Comm& comm, Algorithm algorithm) {
    for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
      for (std::size_t at = 0; at < kCount; ++at) {
        std::vector<TypeParam> own(kCount, from_float<TypeParam>(static_cast<float>(comm.rank())));
        if (comm.rank() == static_cast<int>(at % 3)) own[at] = nan;
        const auto result = reduced(comm, op, algorithm, own);
        for (std::size_t i = 0; i < kCount; ++i) {
          if (i == at) ASSERT_TRUE(std::isnan(to_double(result[i]))) << to_string(algorithm) << " at " << at;
          else ASSERT_EQ(to_double(result[i]), op == ReduceOp::Min ? 0 : 2) << to_string(algorithm) << " at " << at;
        }
      }
    }
  });
}

TYPED_TEST(FloatValues, InfinitiesAddUpAsIeeeSays) {
  const float inf = std::numeric_limits<float>::infinity();
  with_each_algorithm([&](const Comm& comm, Algorithm algorithm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    // Element by element, what the three ranks have.
    const float values[][3] = {{inf, 1, inf}, {-inf, 1, 2}, {inf, -inf, 0}, {0, inf, -inf}, {1, 2, 3}};
    std::vector<TypeParam> own;
    for (const auto& value : values) own.push_back(from_float<TypeParam>(value[rank]));
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Mean}) {
      const auto sum = reduced(comm, op, algorithm, own);
      EXPECT_EQ(to_double(sum[0]), inf);
      EXPECT_EQ(to_double(sum[1]), -inf);
      EXPECT_TRUE(std::isnan(to_double(sum[2])));
      EXPECT_TRUE(std::isnan(to_double(sum[3])));
      EXPECT_EQ(to_double(sum[4]), op == ReduceOp::Sum ? 6 : 2);
    }
    const auto least = reduced(comm, ReduceOp::Min, algorithm, own),
               most = reduced(comm, ReduceOp::Max, algorithm, own);
    EXPECT_EQ(to_double(least[2]), -inf);
    EXPECT_EQ(to_double(most[2]), inf);
  });
}

// Each of these would be another number if partial sums were rounded to 16 bits.
TEST(Values, SixteenBitTypesAreSummedInFloat) {
  with_each_algorithm([](const Comm& comm, Algorithm algorithm) {
    const auto sum_of = [&]<class T>(T first, T second, T third) {
      const T own[] = {first, second, third};
      const auto result =
          reduced(comm, ReduceOp::Sum, algorithm, std::vector<T>(50, own[static_cast<std::size_t>(comm.rank())]));
      for (const T one : result) EXPECT_EQ(one.bits, result[0].bits);
      return to_float(result[0]);
    };
    EXPECT_EQ(sum_of(to_half(2048), to_half(1), to_half(1)), 2050);
    EXPECT_EQ(sum_of(to_half(60000), to_half(60000), to_half(-60000)), 60000) << "no overflow on the way";
    EXPECT_EQ(sum_of(to_half(0x1p-23f), to_half(1), to_half(-1)), 0x1p-23f);
    EXPECT_EQ(sum_of(to_bfloat16(256), to_bfloat16(1), to_bfloat16(1)), 258);
  });
}

}  // namespace
}  // namespace paceline
