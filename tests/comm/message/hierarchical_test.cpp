// All-reduce over several hosts, inside the hosts first: the bits of one host, whatever is summed and however ranks are
// spread.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "paceline/comm/host_map.h"
#include "paceline/comm/operation.h"
#include "paceline/store/store.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

struct Case {
  int world;
  std::vector<int> ranks_per_host;
  Dtype dtype;
  ReduceOp reduce;
  std::size_t count;
  bool in_place, allocated, started;
  std::vector<double> weights;  // by rank
  std::uint64_t seed;

  std::string text() const {
    std::string hosts;
    for (const int ranks : ranks_per_host) hosts += " " + std::to_string(ranks);
    return "world " + std::to_string(world) + ", hosts of" + hosts + ", " + to_string(dtype) + " x " +
           std::to_string(count) + ", " + to_string(reduce) + ", seed " + std::to_string(seed);
  }
};

/// Any bits but NaN: of the sums of several NaNs, which one comes out is not defined.
void fill(Dtype dtype, std::span<std::byte> memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto each = [&](auto typed) {
    using T = decltype(typed);
    for (std::size_t i = 0; i < memory.size() / sizeof(T); ++i) {
      if constexpr (std::is_floating_point_v<T>) {
        const int kind = static_cast<int>(random() % 8);
        const auto size = static_cast<T>(std::ldexp(1.0 + static_cast<double>(random() % 1000) / 997, kind - 4));
        typed = kind == 0 ? static_cast<T>(-0.0) : random() % 2 == 0 ? size : -size;
      } else {
        typed = static_cast<T>(random());
      }
      std::memcpy(memory.data() + i * sizeof(T), &typed, sizeof(T));
    }
  };
  switch (dtype) {
    case Dtype::Float32: return each(float{});
    case Dtype::Float64: return each(double{});
    case Dtype::Int32: return each(std::int32_t{});
    case Dtype::Int64: return each(std::int64_t{});
    default: return each(std::uint8_t{});
  }
}

/// What each rank holds afterwards.
std::vector<std::vector<std::byte>> results(const Case& one, ThreadEngine engine, Algorithm algorithm) {
  std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(one.world));
  const std::size_t bytes = one.count * size_of(one.dtype);
  run_ranks(one.world,
            [&](const Comm& comm) {
              const auto rank = static_cast<std::size_t>(comm.rank());
              std::vector<std::byte> own_in(bytes), own_out(bytes);
              const Buffer in_buffer = comm.allocate(bytes), out_buffer = comm.allocate(bytes);
              std::byte* in = one.allocated ? in_buffer.data() : own_in.data();
              std::byte* out = one.in_place ? in : one.allocated ? out_buffer.data() : own_out.data();
              fill(one.dtype, {in, bytes}, one.seed + rank);
              if (one.weights[rank] == 0 && one.dtype == Dtype::Float32 && one.reduce == ReduceOp::Mean) {
                std::fill_n(reinterpret_cast<float*>(in), one.count, NAN);  // is not read
              }
              const Operation operation{.kind = Collective::AllReduce,
                                        .dtype = one.dtype,
                                        .reduce = one.reduce,
                                        .algorithm = algorithm,
                                        .count = one.count,
                                        .in = in,
                                        .out = out,
                                        .weight = one.weights[rank]};
              for (int round = 0; round < 2; ++round) {
                if (round == 1 && one.in_place) break;
                if (one.started) comm.start(operation).wait();
                else comm.run(operation);
              }
              all[rank].assign(out, out + bytes);
            },
            {.engine = engine, .comm = {.timeout = std::chrono::seconds(60)}, .ranks_per_host = one.ranks_per_host});
  return all;
}

Case random_case(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  Case one;
  one.seed = seed;
  one.world = 3 + static_cast<int>(pick(5));
  do {
    one.ranks_per_host = {1 + static_cast<int>(pick(3)), 1 + static_cast<int>(pick(3))};
  } while (one.ranks_per_host[0] + one.ranks_per_host[1] == 2 || one.ranks_per_host[0] >= one.world);
  constexpr Dtype kTypes[] = {Dtype::Float32, Dtype::Float32, Dtype::Float64, Dtype::Int32, Dtype::Int64, Dtype::UInt8};
  one.dtype = kTypes[pick(6)];
  constexpr ReduceOp kOps[] = {ReduceOp::Mean, ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max};
  const bool whole = one.dtype != Dtype::Float32 && one.dtype != Dtype::Float64;
  one.reduce = kOps[whole ? 1 + pick(3) : pick(4)];
  constexpr std::size_t kCounts[] = {0, 1, 15, 17, 1023, 5000, 65'537, 400'001};
  one.count = kCounts[pick(8)];
  one.in_place = pick(2) == 0;
  one.allocated = pick(3) != 0;
  one.started = pick(2) == 0;
  one.weights.assign(static_cast<std::size_t>(one.world), 64.0);
  if (pick(2) == 0) {
    for (double& weight : one.weights) weight = static_cast<double>(pick(4)) * 0.7;
    if (pick(2) == 0) std::fill_n(one.weights.begin(), std::min(one.world, one.ranks_per_host[0]), 0.0);
    if (pick(8) == 0) std::fill(one.weights.begin(), one.weights.end(), 0.0);
  }
  return one;
}

TEST(Hierarchical, HasTheBitsOfOneHost) {
  std::uint64_t seed = test::seed();
  for (int round = 0; round < 40; ++round, ++seed) {
    const Case one = random_case(seed);
    SCOPED_TRACE(one.text());
    const auto inside = results(one, ThreadEngine::SharedMemory, Algorithm::Auto);
    const auto over_hosts = results(one, ThreadEngine::Hosts, Algorithm::Hierarchical);
    for (std::size_t rank = 0; rank < inside.size(); ++rank) {
      ASSERT_TRUE(inside[0] == over_hosts[rank]) << "rank " << rank;
    }
  }
}

TEST(Hierarchical, IsWhatLargeAllReducesTakeWhereHostsShare) {
  const auto choice = [](std::vector<int> ranks_per_host, const Operation& operation) {
    Algorithm chosen{};
    run_ranks(4,
              [&](const Comm& comm) {
                if (comm.rank() == 0) chosen = comm.algorithm(operation);
              },
              {.engine = ThreadEngine::Hosts, .ranks_per_host = std::move(ranks_per_host)});
    return chosen;
  };
  Operation operation{.kind = Collective::AllReduce, .dtype = Dtype::Float32, .count = 100'000};
  EXPECT_EQ(choice({2}, operation), Algorithm::Hierarchical);
  EXPECT_EQ(choice({3}, operation), Algorithm::Hierarchical);
  EXPECT_EQ(choice({1}, operation), Algorithm::Direct);
  const Algorithm inside = choice({4}, operation);
  EXPECT_TRUE(inside == Algorithm::Slices || inside == Algorithm::ChunkQueue) << to_string(inside);
  operation.dtype = Dtype::BFloat16;
  EXPECT_EQ(choice({2}, operation), Algorithm::Direct);
  operation.algorithm = Algorithm::Hierarchical;
  EXPECT_THROW(choice({2}, operation), Error);
  EXPECT_THROW(choice({1}, operation), Error);
}

TEST(HostMap, RanksOfOneProcessShareAHost) {
  const auto store = make_memory_store();
  run_ranks(5, [&](const Comm& comm) {
    const HostMap map = find_hosts(*store, "world", comm.rank(), 5, Deadline(std::chrono::seconds(30)));
    EXPECT_EQ(map.hosts, (std::vector<std::vector<int>>{{0, 1, 2, 3, 4}}));
    EXPECT_TRUE(map.one_host());
  });
}

TEST(HostMap, KnowsWhereRanksAre) {
  const HostMap map{{{0, 1, 2}, {3, 4}}};
  EXPECT_EQ(map.host_of(2), 0);
  EXPECT_EQ(map.host_of(3), 1);
  EXPECT_EQ(map.place_of(4), 1);
  EXPECT_EQ(map.least_ranks(), 2);
  EXPECT_TRUE(map.shares());
  EXPECT_TRUE(map.in_order());
  EXPECT_FALSE((HostMap{{{0, 2}, {1, 3}}}).in_order());
  EXPECT_FALSE((HostMap{{{0}, {1}}}).shares());
}

TEST(HostMap, ATimeoutNamesWhoDidNotCome) {
  const auto store = make_memory_store();
  try {
    find_hosts(*store, "world", 0, 3, Deadline(std::chrono::milliseconds(20)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Timeout);
    EXPECT_NE(error.message().find("rank 1, 2 of 3"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace paceline
