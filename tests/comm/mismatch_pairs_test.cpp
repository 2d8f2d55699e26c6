// Disagreements that are not with rank 0's call: between two ranks, of a rank with itself, and about who there is. Not
// a byte of anybody's memory changes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "paceline/store/store.h"
#include "tests/support/rank_memory.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

class OtherMismatches : public testing::TestWithParam<std::tuple<ThreadEngine, int>> {};

INSTANTIATE_TEST_SUITE_P(Worlds, OtherMismatches,
                         testing::Combine(testing::Values(ThreadEngine::SharedMemory, ThreadEngine::Tcp),
                                          testing::Values(2, 3, 4)),
                         [](const auto& world) {
                           return test::engine_label(std::get<0>(world.param)) +
                                  std::to_string(std::get<1>(world.param));
                         });

// What a rank sends to one other is between these two; all the same, all learn of it, and nobody gets anything.
TEST_P(OtherMismatches, OfWhatOneRankSendsAndAnotherExpectsTouchNothing) {
  const auto [engine, world] = GetParam();
  for (const std::size_t count : {std::size_t{6}, std::size_t{6000}, std::size_t{60'000}}) {
    test::on_ranks(world, engine, [&, world = world](const Comm& comm) {
      const test::RankMemory memory(comm, count, true);
      std::vector<std::size_t> sends(static_cast<std::size_t>(world), count - 1), receives = sends;
      if (comm.rank() == world - 1) receives[0] = count - 2;
      try {
        comm.run({.kind = Collective::AllToAll,
                  .dtype = Dtype::Float32,
                  .in = memory.in(),
                  .out = memory.out(),
                  .counts = sends,
                  .receive_counts = receives});
        ADD_FAILURE() << "rank " << comm.rank() << " noticed nothing";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::Mismatch) << error.what();
        EXPECT_NE(error.message().find("rank 0 sends"), std::string::npos) << error.what();
      }
      EXPECT_TRUE(memory.untouched()) << "rank " << comm.rank() << ", " << count << " elements";
    });
  }
}

// What a rank sends to itself is its own affair, and its own mistake.
TEST_P(OtherMismatches, OfWhatARankSendsToItselfAreRefusedBeforeAnythingIsSent) {
  const auto [engine, world] = GetParam();
  test::on_ranks(world, engine, [&, world = world](const Comm& comm) {
    const test::RankMemory memory(comm, 10, true);
    std::vector<std::size_t> sends(static_cast<std::size_t>(world), 5), receives = sends;
    ++receives[static_cast<std::size_t>(comm.rank())];
    try {
      comm.run({.kind = Collective::AllToAll,
                .dtype = Dtype::Float32,
                .in = memory.in(),
                .out = memory.out(),
                .counts = sends,
                .receive_counts = receives});
      ADD_FAILURE() << "taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    }
    comm.barrier();
  });
}

// A weight that is none is the caller's own mistake: nothing is sent, and the communicator lives on.
TEST_P(OtherMismatches, WeightsThatAreNoneAreRefusedBeforeAnythingIsSent) {
  const auto [engine, world] = GetParam();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  test::on_ranks(world, engine, [&](const Comm& comm) {
    const test::RankMemory memory(comm, 100, true);
    Operation operation{.kind = Collective::AllReduce,
                        .dtype = Dtype::Float32,
                        .reduce = ReduceOp::Mean,
                        .count = 100,
                        .in = memory.in(),
                        .out = memory.out()};
    for (const double weight : {std::nan(""), -1.0, -1e-300, kInfinite, -kInfinite}) {
      operation.weight = weight;
      try {
        if (comm.rank() == 1) comm.run(operation);
        else comm.start(operation);
        ADD_FAILURE() << "a weight of " << weight << " was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
        EXPECT_NE(error.message().find("weight"), std::string::npos) << error.what();
      }
    }
    EXPECT_TRUE(memory.untouched());
    comm.barrier();
  });
}

// Ranks that were told different numbers of ranks do not wait for those that never come.
TEST(MismatchAtTheMeeting, OfWorldSizesNamesBoth) {
  for (const bool tcp : {false, true}) {
    const auto store = make_memory_store();
    std::vector<std::string> heard(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          const int world_size = rank == 0 ? 4 : 3;
          const CommOptions options{.timeout = std::chrono::seconds(30)};
          if (tcp) (void)Comm::over_tcp(store, "world", rank, world_size, {}, options);
          else (void)Comm::over_shared_memory(store, "world", rank, world_size, options);
          ADD_FAILURE() << "met";
        } catch (const Error& error) {
          heard[static_cast<std::size_t>(rank)] = error.message();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    // Whoever sees it first says so; the others hear that from the store, or see it too.
    for (const std::string& message : heard) {
      EXPECT_NE(message.find("one of 4"), std::string::npos) << message;
      EXPECT_NE(message.find("one of 3"), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace paceline
