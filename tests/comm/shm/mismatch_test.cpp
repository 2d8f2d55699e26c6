// Ranks that call different things over shared memory: the same Mismatch on all of them, and no data touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "tests/support/shm_world.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kFloats = 6000;

/// Memory of one rank: `in` and `out` of enough floats for any call below.
struct Memory {
  Buffer in, out;
  explicit Memory(const Comm& comm)
      : in(comm.allocate(kRanks * kFloats * sizeof(float))), out(comm.allocate(kRanks * kFloats * sizeof(float))) {
    for (float& x : test::floats_of(in)) x = 1 + static_cast<float>(comm.rank());
    for (float& x : test::floats_of(out)) x = -1;
  }
  Operation call(Collective kind, std::size_t count = kFloats) const {
    std::byte* const to = kind == Collective::Broadcast ? in.data() : out.data();
    return {.kind = kind, .dtype = Dtype::Float32, .count = count, .in = in.data(), .out = to};
  }
  bool untouched(int rank) const {
    const auto all = [](const Buffer& buffer, float value) {
      const auto floats = test::floats_of(buffer);
      return std::all_of(floats.begin(), floats.end(), [&](float x) { return x == value; });
    };
    return all(in, 1 + static_cast<float>(rank)) && all(out, -1);
  }
};

/// What ranks 0 and 2 call, and what rank 1 makes of it.
struct Difference {
  const char* name;
  Collective kind;
  std::function<void(Operation&)> deviate;
  const char* described;  // of rank 1's call, in the message
};

const std::size_t kEven[] = {2000, 2000, 2000}, kUneven[] = {2001, 1999, 2000};

class Differences : public testing::TestWithParam<Difference> {};

TEST_P(Differences, AreAMismatchOnAllRanksBeforeAnythingIsTouched) {
  std::map<int, std::string> heard;
  std::mutex mutex;
  const auto body = [&](const Comm& comm) {
    const Memory memory(comm);
    Operation operation = memory.call(GetParam().kind);
    if (std::string(GetParam().name) == "Counts") operation.counts = kEven, operation.count = 0;
    if (comm.rank() == 1) GetParam().deviate(operation);
    std::string first, second;
    try {
      comm.run(operation);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Mismatch);
      first = error.message();
    }
    EXPECT_TRUE(memory.untouched(comm.rank())) << "rank " << comm.rank();
    try {
      comm.barrier();
    } catch (const Error& error) {
      second = error.message();
    }
    EXPECT_EQ(first, second) << "a dead communicator says why";
    comm.barrier();  // throws: run_ranks would go on
    ADD_FAILURE();
  };
  const auto noting = [&](const Comm& comm) {
    try {
      body(comm);
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      heard[comm.rank()] = error.message();
    }
  };
  test::on_ranks(kRanks, ThreadEngine::SharedMemory, noting);
  ASSERT_EQ(heard.size(), std::size_t{kRanks});
  for (const auto& [rank, message] : heard) {
    EXPECT_EQ(message, heard[0]);
    EXPECT_NE(message.find(std::string("but rank 1 calls ") + GetParam().described), std::string::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Differences,
    testing::Values(
        Difference{"Kind", Collective::AllGather, [](Operation& o) { o.kind = Collective::AllToAll; }, "all_to_all #1"},
        Difference{"Type", Collective::Gather, [](Operation& o) { o.dtype = Dtype::Int32; }, "gather #1 (int32"},
        Difference{"Count", Collective::ReduceScatter, [](Operation& o) { --o.count; },
                   "reduce_scatter #1 (float32 x 5999, sum)"},
        Difference{"CountOfSmall", Collective::AllReduce, [](Operation& o) { o.count = 3; },
                   "all_reduce #1 (float32 x 3, sum)"},
        Difference{"Reduction", Collective::Reduce, [](Operation& o) { o.reduce = ReduceOp::Max; },
                   "reduce #1 (float32 x 6000, max, root 0)"},
        Difference{"Root", Collective::Broadcast, [](Operation& o) { o.root = 2; },
                   "broadcast #1 (float32 x 6000, root 2)"},
        Difference{"RootOfScatter", Collective::Scatter, [](Operation& o) { o.root = 1; },
                   "scatter #1 (float32 x 6000, root 1)"},
        Difference{"Algorithm", Collective::AllReduce, [](Operation& o) { o.algorithm = Algorithm::ChunkQueue; },
                   "all_reduce #1 (float32 x 6000, sum, chunk_queue)"},
        Difference{"InPlace", Collective::AllToAll, [](Operation& o) { o.out = const_cast<std::byte*>(o.in); },
                   "all_to_all #1 (float32 x 6000, in place)"},
        Difference{"Label", Collective::AllReduce, [](Operation& o) { o.label = "mine"; }, "all_reduce #1 'mine'"},
        Difference{"Counts", Collective::AllGather, [](Operation& o) { o.counts = kUneven; },
                   "all_gather #1 (float32 x 6000 in uneven parts"},
        Difference{"UnevenAndEven", Collective::AllGather, [](Operation& o) { o.counts = kUneven; },
                   "all_gather #1 (float32 x 6000 in uneven parts"}),
    [](const auto& difference) { return std::string(difference.param.name); });

/// What each rank throws.
std::vector<Error> errors_of(const std::function<void(const Comm&)>& body) {
  std::vector<Error> errors(kRanks, Error(ErrorCode::InvalidArgument, "nothing"));
  test::on_ranks(kRanks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    try {
      body(comm);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(comm.rank())] = error;
    }
  });
  return errors;
}

TEST(Mismatch, OfABlockingCallWithAStartedOne) {
  for (const std::size_t count : {std::size_t{1}, kFloats}) {
    for (const Error& error : errors_of([&](const Comm& comm) {
           const Memory memory(comm);
           const Operation sum = memory.call(Collective::AllReduce, count);
           if (comm.rank() == 1) comm.start(sum).wait();
           else comm.run(sum);
         })) {
      EXPECT_EQ(error.code(), ErrorCode::Mismatch) << error.what();
      EXPECT_NE(error.message().find("started"), std::string::npos) << error.what();
    }
  }
}

// Uneven parts of an all_to_all are between two ranks; all the same, all of them learn of it.
TEST(Mismatch, OfWhatOneRankSendsAndAnotherExpects) {
  for (const Error& error : errors_of([](const Comm& comm) {
         const Memory memory(comm);
         std::vector<std::size_t> sends(kRanks, 2000), receives(kRanks, 2000);
         if (comm.rank() == 1) receives[2] = 1999;
         Operation operation = memory.call(Collective::AllToAll, 0);
         operation.counts = sends;
         operation.receive_counts = receives;
         comm.run(operation);
       })) {
    EXPECT_EQ(error.code(), ErrorCode::Mismatch) << error.what();
    EXPECT_NE(error.message().find("rank 2 sends 2000 elements to rank 1, which expects 1999"), std::string::npos)
        << error.what();
  }
}

TEST(Mismatch, OfARankThatSkipsAnOperation) {
  for (const Error& error : errors_of([](const Comm& comm) {
         const Memory memory(comm);
         for (int step = 0; step < 10; ++step) {
           if (comm.rank() != 1 || step != 5) comm.run(memory.call(Collective::AllReduce));
           comm.barrier();
         }
       })) {
    EXPECT_EQ(error.code(), ErrorCode::Mismatch) << error.what();
    EXPECT_NE(error.message().find("rank 0 calls all_reduce #11"), std::string::npos) << error.what();
    EXPECT_NE(error.message().find("rank 1 calls barrier #11"), std::string::npos) << error.what();
  }
}

// The last of equal operations: there is nothing to compare with, but who ends is named.
TEST(Mismatch, OfARankThatSkipsTheLastOperationIsALostPeer) {
  const auto errors = errors_of([](const Comm& comm) {
    const Memory memory(comm);
    for (int step = 0; step < (comm.rank() == 1 ? 9 : 10); ++step) comm.run(memory.call(Collective::AllReduce));
  });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(errors[rank].code(), ErrorCode::PeerLost) << errors[rank].what();
    EXPECT_EQ(errors[rank].peer(), 1);
  }
  EXPECT_EQ(errors[1].message(), "nothing");
}

}  // namespace
}  // namespace paceline
