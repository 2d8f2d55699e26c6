// Every collective against the plain definition, on exact data, over both engines of threads.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <tuple>
#include <vector>

#include "tests/support/world.h"

namespace paceline {
namespace {

template <class T>
T make(int value) {
  if constexpr (std::is_same_v<T, Half>) return to_half(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, BFloat16>) return to_bfloat16(static_cast<float>(value));
  else return static_cast<T>(value);
}

// Small enough that sums over 8 ranks are exact in every type (bfloat16 has 8 bits, uint8 ends at 255).
int value_at(int rank, std::size_t i) { return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3) % 16); }

int expected(ReduceOp op, int world, std::size_t i) {
  int sum = 0, least = 1000, most = 0;
  for (int rank = 0; rank < world; ++rank) {
    sum += value_at(rank, i);
    least = std::min(least, value_at(rank, i));
    most = std::max(most, value_at(rank, i));
  }
  return op == ReduceOp::Sum ? sum : op == ReduceOp::Min ? least : most;
}

/// All of `actual` is, bit for bit, what `wanted(i)` says.
template <class T, class Wanted>
void expect_all(std::span<const T> actual, Wanted&& wanted) {
  std::vector<T> all(actual.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = make<T>(wanted(i));
  const auto differs = [](const T& a, const T& b) { return std::memcmp(&a, &b, sizeof(T)) != 0; };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (differs(actual[i], all[i])) FAIL() << "wrong at " << i << " of " << all.size();
  }
}

template <class T>
void check_all_reduce(const Comm& comm, std::span<T> data) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max}) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = make<T>(value_at(comm.rank(), i));
    comm.all_reduce(data, op);
    expect_all<T>(data, [&](std::size_t i) { return expected(op, comm.world_size(), i); });
  }
  // A mean that is whole: all ranks hold the same.
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = make<T>(static_cast<int>(i % 16));
  comm.all_reduce(data, ReduceOp::Mean);
  if (const int n = comm.world_size(); (n & (n - 1)) == 0 || std::is_integral_v<T>) {
    expect_all<T>(data, [](std::size_t i) { return static_cast<int>(i % 16); });
  }
}

template <class T>
void check_others(const Comm& comm, std::size_t count) {
  const auto world = static_cast<std::size_t>(comm.world_size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  std::vector<T> whole(count * world), part(count), gathered(count * world);
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = make<T>(value_at(comm.rank(), i));
  comm.reduce_scatter<T>(whole, part);
  expect_all<T>(part, [&](std::size_t i) { return expected(ReduceOp::Sum, comm.world_size(), rank * count + i); });
  for (std::size_t i = 0; i < count; ++i) part[i] = make<T>(value_at(comm.rank(), i));
  comm.all_gather<T>(part, gathered);
  expect_all<T>(gathered, [&](std::size_t i) { return value_at(static_cast<int>(i / count), i % count); });
  for (int root = 0; root < comm.world_size(); ++root) {
    for (std::size_t i = 0; i < count; ++i) part[i] = make<T>(value_at(comm.rank(), i));
    comm.broadcast<T>(part, root);
    expect_all<T>(part, [&](std::size_t i) { return value_at(root, i); });
  }
}

template <class T>
void check_type(const Comm& comm, std::size_t count) {
  std::vector<T> outside(count);
  check_all_reduce<T>(comm, outside);
  const Buffer buffer = comm.allocate(count * sizeof(T));
  check_all_reduce<T>(comm, {reinterpret_cast<T*>(buffer.data()), count});
  check_others<T>(comm, count);
}

using World = std::tuple<ThreadEngine, int>;
class Collectives : public testing::TestWithParam<World> {
 protected:
  ThreadEngine engine() const { return std::get<0>(GetParam()); }
  int n() const { return std::get<1>(GetParam()); }
};

TEST_P(Collectives, AreExactForEveryTypeAndOddSizes) {
  const auto world = static_cast<std::size_t>(n());
  std::vector<std::size_t> sizes{0, 1, world - 1, world, world + 1, 63, 64, 67, 257, 4099};
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    for (const std::size_t count : sizes) {
      check_type<float>(comm, count);
      check_type<double>(comm, count);
      check_type<Half>(comm, count);
      check_type<BFloat16>(comm, count);
      check_type<std::int32_t>(comm, count);
      check_type<std::int64_t>(comm, count);
      check_type<std::uint8_t>(comm, count);
      comm.barrier();
    }
  });
}

TEST_P(Collectives, AreExactOverSeveralPieces) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) { check_type<float>(comm, 270'011); });
}

// Buffers of allocate() and others may meet in one call.
TEST_P(Collectives, RanksMayDifferInWhereTheirBuffersLie) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    const std::size_t count = 270'001;
    std::vector<float> outside(count);
    const Buffer inside = comm.allocate(count * sizeof(float));
    std::span<float> data = outside;
    if (comm.rank() % 2 == 0) data = {reinterpret_cast<float*>(inside.data()), count};
    check_all_reduce<float>(comm, data);
  });
}

TEST_P(Collectives, ManyOperationsMayBeOutstanding) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    constexpr std::size_t kOperations = 200, kCount = 300;
    const Buffer buffer = comm.allocate(kOperations * kCount * sizeof(float));
    auto* data = reinterpret_cast<float*>(buffer.data());
    for (int round = 0; round < 3; ++round) {
      std::vector<Comm::Work> work;
      for (std::size_t op = 0; op < kOperations; ++op) {
        float* from = data + op * kCount;
        for (std::size_t i = 0; i < kCount; ++i) from[i] = static_cast<float>(value_at(comm.rank(), i + op));
        auto* bytes = reinterpret_cast<std::byte*>(from);
        work.push_back(comm.start(
            {.kind = Collective::AllReduce, .dtype = Dtype::Float32, .count = kCount, .in = bytes, .out = bytes}));
      }
      for (std::size_t op = 0; op < kOperations; ++op) {
        if (op % 3 == 0)
          while (!work[op].test()) std::this_thread::yield();
        else work[op].wait();
        for (std::size_t i = 0; i < kCount; ++i) {
          ASSERT_EQ(data[op * kCount + i], expected(ReduceOp::Sum, comm.world_size(), i + op));
        }
      }
    }
  });
}

TEST_P(Collectives, CommunicatorsBesideEachOtherDoNotMix) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    const Comm copy = comm.duplicate();
    const Comm half = comm.split(comm.rank() % 2, -comm.rank());
    EXPECT_EQ(copy.rank(), comm.rank());
    EXPECT_EQ(half.world_size(), (comm.world_size() + 1 - comm.rank() % 2) / 2);
    EXPECT_EQ(half.rank(), half.world_size() - 1 - comm.rank() / 2) << "the higher key comes later";
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(copy.sum(1), comm.world_size());
      EXPECT_EQ(half.sum(1), half.world_size());
      EXPECT_EQ(comm.sum(comm.rank()), comm.world_size() * (comm.world_size() - 1) / 2);
    }
    EXPECT_EQ(half.duplicate().sum(1), half.world_size());
  });
}

TEST_P(Collectives, MetricsAreWeightedAndTextsGathered) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    const double world = comm.world_size(), rank = comm.rank();
    EXPECT_DOUBLE_EQ(comm.mean(rank), (world - 1) / 2);
    const double weight_sum = world * (world + 1) / 2;
    double expected_mean = 0;
    for (int r = 0; r < comm.world_size(); ++r) expected_mean += r * (r + 1) / weight_sum;
    EXPECT_DOUBLE_EQ(comm.mean(rank, rank + 1), expected_mean);
    EXPECT_DOUBLE_EQ(comm.mean(comm.rank() == 0 ? 7 : NAN, comm.rank() == 0 ? 1 : 0), 7);
    const auto texts = comm.gather(std::string(static_cast<std::size_t>(comm.rank()), 'x'));
    for (int r = 0; r < comm.world_size(); ++r) EXPECT_EQ(texts[r], std::string(static_cast<std::size_t>(r), 'x'));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives,
                         testing::Combine(testing::Values(ThreadEngine::SharedMemory, ThreadEngine::Messages,
                                                          ThreadEngine::Tcp, ThreadEngine::Hosts),
                                          testing::ValuesIn(test::worlds())),
                         [](const auto& world) {
                           return test::engine_label(std::get<0>(world.param)) +
                                  std::to_string(std::get<1>(world.param));
                         });

// The order of the sum is the ranks', so engines, sizes and places of the cut give the same bits.
TEST(Collectives, BothEnginesGiveTheSameBits) {
  const std::uint64_t seed = test::seed();
  for (const int n : {2, 3, 5}) {
    std::vector<std::vector<float>> results;
    for (const ThreadEngine engine : {ThreadEngine::SharedMemory, ThreadEngine::Messages}) {
      std::vector<float> result;
      test::on_ranks(n, engine, [&](const Comm& comm) {
        std::mt19937_64 random(seed + static_cast<std::uint64_t>(comm.rank()));
        std::normal_distribution<float> normal;
        std::vector<float> data(10'007);
        for (float& x : data) x = normal(random);
        comm.all_reduce<float>(data, ReduceOp::Mean);
        if (comm.rank() == n - 1) result = data;
      });
      results.push_back(result);
    }
    EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)), 0)
        << "seed " << seed;
  }
}

TEST(Collectives, WeightsOfRanksMayDiffer) {
  for (const ThreadEngine engine : {ThreadEngine::SharedMemory, ThreadEngine::Messages}) {
    test::on_ranks(3, engine, [&](const Comm& comm) {
      for (const std::size_t count : {std::size_t{5}, std::size_t{5000}}) {
        const Buffer buffer = comm.allocate(count * sizeof(float));
        auto* data = reinterpret_cast<float*>(buffer.data());
        std::fill_n(data, count, comm.rank() == 1 ? NAN : 4.0f * static_cast<float>(comm.rank() + 1));
        const double weight = comm.rank() == 0 ? 3 : comm.rank() == 1 ? 0 : 1;
        comm.start({.kind = Collective::AllReduce,
                    .dtype = Dtype::Float32,
                    .reduce = ReduceOp::Mean,
                    .count = count,
                    .in = buffer.data(),
                    .out = buffer.data(),
                    .weight = weight})
            .wait();
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], 6.0f);
      }
    });
  }
}

}  // namespace
}  // namespace paceline
