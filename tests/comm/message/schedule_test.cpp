// Algorithms over messages that Auto chooses only for large operations, forced on all sizes, over queues and TCP.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <tuple>
#include <vector>

#include "tests/support/world.h"

namespace paceline {
namespace {

using World = std::tuple<ThreadEngine, int>;
class Schedules : public testing::TestWithParam<World> {
 protected:
  ThreadEngine engine() const { return std::get<0>(GetParam()); }
  int n() const { return std::get<1>(GetParam()); }
  /// Sizes around the cuts of slices and segments.
  std::vector<std::size_t> sizes() const {
    const auto world = static_cast<std::size_t>(n());
    return {0, 1, world - 1, world, world + 1, 16 * world, 257, 4099, 100'003, 300'007};
  }
};

template <class T>
std::byte* bytes_of(std::vector<T>& data) {
  return reinterpret_cast<std::byte*>(data.data());
}

float value_at(int rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 16);
}

float sum_at(int n, std::size_t i) {
  float sum = 0;
  for (int rank = 0; rank < n; ++rank) sum += value_at(rank, i);
  return sum;
}

std::vector<float> values(int rank, std::size_t count) {
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = value_at(rank, i);
  return data;
}

TEST_P(Schedules, AllReduceIsExactInAndOutOfPlace) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    for (const Algorithm algorithm : {Algorithm::Direct, Algorithm::Ring}) {
      for (const std::size_t count : sizes()) {
        std::vector<float> in = values(comm.rank(), count), out(count);
        Operation operation{.kind = Collective::AllReduce,
                            .dtype = Dtype::Float32,
                            .algorithm = algorithm,
                            .count = count,
                            .in = bytes_of(in),
                            .out = bytes_of(out)};
        comm.start(operation).wait();
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], sum_at(n(), i)) << i << " of " << count;
        ASSERT_EQ(in, values(comm.rank(), count)) << "the input was changed";
        operation.out = bytes_of(in);
        comm.start(operation).wait();
        ASSERT_EQ(in, out);
      }
    }
  });
}

TEST_P(Schedules, DirectGivesTheBitsOfSharedMemoryAndRingTheSameOnAllRanks) {
  const std::uint64_t seed = test::seed();
  SCOPED_TRACE(testing::Message() << "PACELINE_TEST_SEED=" << seed);
  constexpr std::size_t kCount = 70'001;
  const auto results = [&](ThreadEngine over, Algorithm algorithm) {
    std::vector<std::vector<float>> all(static_cast<std::size_t>(n()));
    test::on_ranks(n(), over, [&](const Comm& comm) {
      std::mt19937_64 random(seed + static_cast<std::uint64_t>(comm.rank()));
      std::normal_distribution<float> normal;
      const Buffer buffer = comm.allocate(kCount * sizeof(float));
      auto* data = reinterpret_cast<float*>(buffer.data());
      for (std::size_t i = 0; i < kCount; ++i) data[i] = normal(random);
      comm.start({.kind = Collective::AllReduce,
                  .dtype = Dtype::Float32,
                  .reduce = ReduceOp::Mean,
                  .algorithm = algorithm,
                  .count = kCount,
                  .in = buffer.data(),
                  .out = buffer.data(),
                  .weight = comm.rank() + 1.0})
          .wait();
      all[static_cast<std::size_t>(comm.rank())].assign(data, data + kCount);
    });
    for (const auto& one : all) EXPECT_EQ(std::memcmp(one.data(), all[0].data(), kCount * sizeof(float)), 0);
    return all[0];
  };
  const auto shared = results(ThreadEngine::SharedMemory, Algorithm::Auto);
  const auto direct = results(engine(), Algorithm::Direct);
  EXPECT_EQ(std::memcmp(shared.data(), direct.data(), kCount * sizeof(float)), 0);
  const auto ring = results(engine(), Algorithm::Ring);
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(ring[i], direct[i], 1e-5) << i;
}

TEST_P(Schedules, AWeightOfZeroIsNotReadOnTheRing) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    constexpr std::size_t kCount = 5000;
    const bool without = comm.rank() == 0;
    std::vector<float> data(kCount, without ? NAN : static_cast<float>(comm.rank()));
    comm.start({.kind = Collective::AllReduce,
                .dtype = Dtype::Float32,
                .reduce = ReduceOp::Mean,
                .algorithm = Algorithm::Ring,
                .count = kCount,
                .in = bytes_of(data),
                .out = bytes_of(data),
                .weight = without ? 0.0 : 1.0})
        .wait();
    for (const float x : data) ASSERT_FLOAT_EQ(x, static_cast<float>(n()) / 2);  // of 1 to n - 1
  });
}

TEST_P(Schedules, MeansTakeWeightsOfAnySize) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    for (const double size : {5e-324, 1e-46, 1e39, 1e307}) {
      for (const Algorithm algorithm : {Algorithm::Auto, Algorithm::Direct, Algorithm::Ring}) {
        const bool first = comm.rank() == 0;
        std::vector<float> data(algorithm == Algorithm::Auto ? 3 : 50'000, first ? 16 : 0);
        comm.start({.kind = Collective::AllReduce,
                    .dtype = Dtype::Float32,
                    .reduce = ReduceOp::Mean,
                    .algorithm = algorithm,
                    .count = data.size(),
                    .in = bytes_of(data),
                    .out = bytes_of(data),
                    .weight = first ? static_cast<double>(n() - 1) * size : size})
            .wait();
        for (const float x : data) ASSERT_FLOAT_EQ(x, 8) << size << " as " << to_string(algorithm);
      }
    }
  });
}

// Sums on the way round a ring would have to fit 16 bits.
TEST_P(Schedules, SumsOfSixteenBitsMayBeLargeOnTheWay) {
  const float most = to_float(Half{0x7BFF});
  ThreadWorldOptions options;
  options.engine = engine();
  options.tcp.all_reduce = Algorithm::Ring;
  run_ranks(
      n(),
      [&](const Comm& comm) {
        constexpr std::size_t kCount = 40'000;
        const float own = comm.rank() % 2 == 0 ? most : comm.rank() == n() - 1 && n() % 2 == 0 ? 0 : -most;
        std::vector<Half> data(kCount, to_half(own));
        comm.all_reduce(Dtype::Float16, std::as_bytes(std::span(data)), std::as_writable_bytes(std::span(data)),
                        ReduceOp::Sum);
        for (const Half x : data) ASSERT_EQ(to_float(x), most);
        std::fill(data.begin(), data.end(), to_half(most));
        comm.all_reduce(Dtype::Float16, std::as_bytes(std::span(data)), std::as_writable_bytes(std::span(data)),
                        ReduceOp::Mean);
        for (const Half x : data) ASSERT_EQ(to_float(x), most);
      },
      options);
}

TEST_P(Schedules, TheOtherKindsAreExactWithoutEagerPayloads) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    const auto world = static_cast<std::size_t>(n());
    const auto rank = static_cast<std::size_t>(comm.rank());
    const int root = n() - 1;
    for (const std::size_t count : sizes()) {
      std::vector<float> whole = values(comm.rank(), count * world), part(count), all(count * world);
      Operation operation{.dtype = Dtype::Float32, .algorithm = Algorithm::Direct, .root = root, .count = count};
      const auto run = [&](Collective kind, std::vector<float>& in, std::vector<float>& out) {
        operation.kind = kind;
        operation.in = bytes_of(in);
        operation.out = bytes_of(out);
        comm.start(operation).wait();
      };
      run(Collective::ReduceScatter, whole, part);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(part[i], sum_at(n(), rank * count + i)) << "reduce_scatter";

      part = values(comm.rank(), count);
      std::vector<float> result(count, -1);
      run(Collective::Reduce, part, result);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(result[i], comm.rank() == root ? sum_at(n(), i) : -1) << "reduce";
      }
      run(Collective::Broadcast, part, part);
      ASSERT_EQ(part, values(root, count)) << "broadcast";

      part = values(comm.rank(), count);
      for (const Collective kind : {Collective::AllGather, Collective::Gather}) {
        std::fill(all.begin(), all.end(), -1.0F);
        run(kind, part, all);
        const bool has = kind == Collective::AllGather || comm.rank() == root;
        for (std::size_t i = 0; i < all.size(); ++i) {
          ASSERT_EQ(all[i], has ? value_at(static_cast<int>(i / count), i % count) : -1) << to_string(kind);
        }
      }
      run(Collective::Scatter, whole, part);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(part[i], value_at(root, rank * count + i)) << "scatter";

      run(Collective::AllToAll, whole, all);
      const auto swapped = [&](std::size_t i) {
        return value_at(static_cast<int>(i / count), rank * count + i % count);
      };
      for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], swapped(i)) << "all_to_all";
      run(Collective::AllToAll, whole, whole);
      for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(whole[i], swapped(i)) << "all_to_all in place";
    }
  });
}

// Some parts ride with the call, others follow it.
TEST_P(Schedules, UnevenPartsOfAllSizesArrive) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    const auto length = [](int from, int to) { return static_cast<std::size_t>((from * 5 + to * 3) % 4) * 30'000; };
    std::vector<std::size_t> send, receive;
    for (int peer = 0; peer < n(); ++peer) {
      send.push_back(length(comm.rank(), peer));
      receive.push_back(length(peer, comm.rank()));
    }
    std::vector<float> in, out(std::accumulate(receive.begin(), receive.end(), std::size_t{0}));
    for (int peer = 0; peer < n(); ++peer) {
      in.insert(in.end(), send[static_cast<std::size_t>(peer)], static_cast<float>(comm.rank() * 100 + peer));
    }
    comm.start({.kind = Collective::AllToAll,
                .dtype = Dtype::Float32,
                .in = bytes_of(in),
                .out = bytes_of(out),
                .counts = send,
                .receive_counts = receive})
        .wait();
    std::size_t at = 0;
    for (int peer = 0; peer < n(); ++peer) {
      for (std::size_t i = 0; i < receive[static_cast<std::size_t>(peer)]; ++i) {
        ASSERT_EQ(out[at++], static_cast<float>(peer * 100 + comm.rank()));
      }
    }
  });
}

TEST_P(Schedules, UnevenPartsThatDoNotFitAreAMismatchNamingBoth) {
  std::mutex mutex;
  std::vector<std::string> heard;
  try {
    test::on_ranks(n(), engine(), [&](const Comm& comm) {
      std::vector<std::size_t> send(static_cast<std::size_t>(n()), 10), receive = send;
      if (comm.rank() == 0) receive[1] = 9;
      std::vector<float> in(send.size() * 10), out(send.size() * 10);
      try {
        comm.start({.kind = Collective::AllToAll,
                    .dtype = Dtype::Float32,
                    .in = bytes_of(in),
                    .out = bytes_of(out),
                    .counts = send,
                    .receive_counts = receive})
            .wait();
        comm.barrier();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::Mismatch) << error.message();
        const std::lock_guard lock(mutex);
        heard.push_back(error.message());
        throw;
      }
    });
    FAIL() << "nobody noticed";
  } catch (const Error&) {
  }
  EXPECT_EQ(heard.size(), static_cast<std::size_t>(n()));
  for (const std::string& message : heard) {
    EXPECT_NE(message.find("rank 1 sends 10 elements to rank 0, which has a place for 9"), std::string::npos)
        << message;
  }
}

TEST_P(Schedules, WhatThereIsNotIsRefused) {
  test::on_ranks(n(), engine(), [&](const Comm& comm) {
    std::vector<std::int32_t> data(100'000);
    const auto refused = [&](Operation operation) {
      operation.dtype = Dtype::Int32;
      operation.count = data.size();
      operation.in = operation.out = bytes_of(data);
      try {
        comm.start(operation).wait();
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.message();
      }
    };
    refused({.kind = Collective::Broadcast, .algorithm = Algorithm::Ring});
    refused({.kind = Collective::AllReduce, .reduce = ReduceOp::Mean, .algorithm = Algorithm::Ring});
    refused({.kind = Collective::AllReduce, .algorithm = Algorithm::OneShot});
    for (const Dtype dtype : {Dtype::Float16, Dtype::BFloat16}) {
      EXPECT_THROW(
          (void)comm.algorithm(
              {.kind = Collective::AllReduce, .dtype = dtype, .algorithm = Algorithm::Ring, .count = data.size()}),
          Error);
    }
    refused({.kind = Collective::AllReduce, .algorithm = Algorithm::ChunkQueue});
    EXPECT_EQ(comm.sum(1), n());
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Schedules,
                         testing::Combine(testing::Values(ThreadEngine::Messages, ThreadEngine::Tcp),
                                          testing::Values(2, 3, 4, 5, 8)),
                         [](const auto& world) {
                           return test::engine_label(std::get<0>(world.param)) +
                                  std::to_string(std::get<1>(world.param));
                         });

}  // namespace
}  // namespace paceline
