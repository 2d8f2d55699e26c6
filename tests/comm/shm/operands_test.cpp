// Operands at the edge of what is allowed, and a little past it.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <vector>

#include "tests/support/shm_world.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

template <class T>
std::byte* bytes_of(std::vector<T>& data) {
  return reinterpret_cast<std::byte*>(data.data());
}

void refused(const char* says, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "accepted: " << says;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  }
}

TEST(Operands, SizesThatNoMemoryHasAndNullsAreRefused) {
  test::on_ranks(4, ThreadEngine::SharedMemory, [](const Comm& comm) {
    std::vector<float> some(8);
    std::byte* const at = bytes_of(some);
    const std::size_t huge = std::size_t{1} << 62;  // times 4 bytes, or 4 ranks: 0
    const auto refuse = [&](const char* says, const Operation& operation) {
      refused(says, [&] { comm.run(operation); });
      refused(says, [&] { comm.start(operation); });
    };
    for (const Collective kind : {Collective::AllReduce, Collective::Reduce, Collective::Broadcast,
                                  Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll}) {
      refuse("memory can hold", {.kind = kind, .dtype = Dtype::Float32, .count = huge, .in = at, .out = at});
    }
    refuse("memory can hold",
           {.kind = Collective::AllGather, .dtype = Dtype::UInt8, .count = 1, .in = at, .out = at, .out_stride = huge});
    refuse("overlap",
           {.kind = Collective::AllGather, .dtype = Dtype::UInt8, .count = 2, .in = at, .out = at, .out_stride = 1});
    const std::size_t wraps[] = {huge, huge, huge, huge};  // 0 elements in all
    refused("memory can hold", [&] { comm.all_gather<float>({}, {}, wraps); });
    refused("memory can hold", [&] { comm.all_to_all<float>({}, {}, wraps, wraps); });
    refuse("in is null", {.kind = Collective::AllReduce, .dtype = Dtype::Float32, .count = 1, .out = at});
    refuse("out is null", {.kind = Collective::AllReduce, .dtype = Dtype::Float32, .count = 1'000'000, .in = at});
    refuse("reach", {.kind = Collective::AllReduce, .count = 8, .in = at, .out = at, .reach = 4});
    EXPECT_EQ(comm.sum(1), 4) << "it lives on";
  });
}

// Empty spans have a pointer or none, equal or not, as it happens.
TEST(Operands, NothingMayLieAnywhere) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    std::vector<float> in(1), out(1);
    for (int kind = 0; kind < 9; ++kind) {
      Operation operation{.kind = static_cast<Collective>(kind), .dtype = Dtype::Float32};
      if (comm.rank() == 1) operation.in = bytes_of(in), operation.out = bytes_of(out);
      comm.run(operation);
      comm.start(operation).wait();
    }
    EXPECT_EQ(comm.sum(1), 2);
  });
}

// The byte sizes of uneven parts are no multiple of anything.
TEST(Operands, UnevenPartsGoThroughSpans) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [](const Comm& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const std::size_t counts[] = {2, 0, 3};
    std::vector<float> own(counts[rank], static_cast<float>(rank)), all(5);
    const std::vector<float> gathered{0, 0, 2, 2, 2};
    comm.all_gather<float>(own, all, counts);
    EXPECT_EQ(all, gathered);
    comm.scatter<float>(all, own, 0, counts);
    EXPECT_EQ(own, std::vector<float>(counts[rank], static_cast<float>(rank)));
    comm.reduce_scatter<float>(all, own, ReduceOp::Sum, counts);
    EXPECT_EQ(own, std::vector<float>(counts[rank], static_cast<float>(3 * rank)));
    // Rank p and rank q send each other p * q elements, and themselves one more.
    const auto between = [](std::size_t p, std::size_t q) { return p * q + (p == q ? 1 : 0); };
    const std::size_t sent[] = {between(rank, 0), between(rank, 1), between(rank, 2)};
    std::vector<float> out(sent[0] + sent[1] + sent[2], static_cast<float>(rank)), in(out.size(), -1), wanted;
    comm.all_to_all<float>(out, in, sent, sent);
    for (std::size_t from = 0; from < 3; ++from) {
      wanted.insert(wanted.end(), between(from, rank), static_cast<float>(from));
    }
    EXPECT_EQ(in, wanted);
  });
}

TEST(Operands, WhatLiesBetweenPartsStays) {
  for (const std::size_t count : {3, 5'000}) {
    test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      const std::size_t stride = count + 2;
      std::vector<float> own(count, static_cast<float>(comm.rank() + 1));
      for (const bool started : {false, true}) {
        for (const bool inside : {false, true}) {
          std::vector<float> outside(2 * stride + count, -1);
          const Buffer buffer = comm.allocate(outside.size() * sizeof(float));
          std::span<float> all = inside ? test::floats_of(buffer) : std::span(outside);
          std::fill(all.begin(), all.end(), -1.0f);
          const Operation operation{.kind = Collective::AllGather,
                                    .dtype = Dtype::Float32,
                                    .count = count,
                                    .in = bytes_of(own),
                                    .out = reinterpret_cast<std::byte*>(all.data()),
                                    .out_stride = stride};
          if (started) comm.start(operation).wait();
          else comm.run(operation);
          for (std::size_t i = 0; i < all.size(); ++i) {
            const std::size_t part = i / stride;
            ASSERT_EQ(all[i], i % stride < count ? static_cast<float>(part + 1) : -1.0f)
                << i << (started ? ", started" : "") << (inside ? ", inside" : "");
          }
        }
      }
    });
  }
}

// ---- Memory that goes away while others still use it.

// Rank 0 starts, and frees what it started with; rank 1 does all of the work.
TEST(FreedOperands, AreSummedUpAsTheyWere) {
  constexpr std::size_t kFloats = 300'000;
  test::ShmWorld world(2);
  for (const Algorithm algorithm : {Algorithm::ChunkQueue, Algorithm::Slices}) {
    Buffer first = world.engine(0).allocate(kFloats * sizeof(float));
    const Buffer second = world.engine(1).allocate(kFloats * sizeof(float));
    for (float& x : test::floats_of(first)) x = 1;
    for (float& x : test::floats_of(second)) x = 2;
    const std::uint64_t number = test::start(world.engine(0), test::sum_of(first.data(), kFloats, algorithm));
    const std::byte* const was = first.data();
    first = {};
    const Buffer other = world.engine(0).allocate(kFloats * sizeof(float));
    EXPECT_NE(other.data(), was) << "taken while in use";
    test::start(world.engine(1), test::sum_of(second.data(), kFloats, algorithm));
    if (algorithm == Algorithm::Slices) world.engine(0).wait(number);
    world.engine(1).wait(number);
    for (const float x : test::floats_of(second)) ASSERT_EQ(x, 3.0f) << to_string(algorithm);
    for (const float x : test::floats_of(other)) ASSERT_EQ(x, 0.0f) << "written to after it was freed";
    world.engine(0).wait(number);
    const Buffer again = world.engine(0).allocate(kFloats * sizeof(float));
    EXPECT_EQ(again.data(), was) << "not given back";
  }
}

TEST(FreedOperands, OfAWorkThatNobodyKeepsAreSummedUpAsTheyWere) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    std::vector<float> data(300'000, static_cast<float>(comm.rank() + 1));
    const Operation sum = test::sum_of(bytes_of(data), data.size(), Algorithm::ChunkQueue);
    if (comm.rank() == 0) {
      comm.start(sum);
      comm.barrier();
    } else {
      Comm::Work work = comm.start(sum);
      comm.barrier();
      work.wait();
      for (const float x : data) ASSERT_EQ(x, 3.0f);
    }
  });
}

TEST(FreedOperands, StayWhenTheCommunicatorEndsFirst) {
  test::ShmWorld world(2);
  Buffer first = world.engine(0).allocate(1'200'000);
  const Buffer second = world.engine(1).allocate(1'200'000);
  for (float& x : test::floats_of(first)) x = 1;
  test::start(world.engine(0), test::sum_of(first.data(), 300'000, Algorithm::ChunkQueue));
  world.end(0);
  first = {};
  const std::uint64_t number =
      test::start(world.engine(1), test::sum_of(second.data(), 300'000, Algorithm::ChunkQueue));
  world.engine(1).wait(number);  // all chunks are there for rank 1 to take
  for (const float x : test::floats_of(second)) ASSERT_EQ(x, 1.0f);
}

// ---- Works.

TEST(Works, CopiesAreTheSameOperation) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    std::vector<float> data(10'000, 1);
    Comm::Work work = comm.start(test::sum_of(bytes_of(data), data.size()));
    Comm::Work copy = work;
    work.wait();
    EXPECT_EQ(data[0], 2);
    data[0] = 5;  // it is the caller's again
    EXPECT_TRUE(copy.test());
    copy.wait();
    EXPECT_EQ(data[0], 5) << "stored twice";
  });
}

TEST(Works, ATimingIsKnownForALongWhileAndThenRefused) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    std::vector<Comm::Work> works;
    std::vector<float> data(1);
    Operation sum = test::sum_of(bytes_of(data), 1);
    sum.timed = true;
    for (std::uint64_t i = 0; i < 3 * RankControl::kSlots; ++i) {
      works.push_back(comm.start(sum));
      works.back().wait();
      const std::uint64_t known = std::min<std::uint64_t>(i + 1, RankControl::kOutstanding);
      for (std::uint64_t age = 1; age < known; ++age) {
        const OperationTiming younger = works[i - age + 1].timing(), timing = works[i - age].timing();
        ASSERT_LE(timing.launched, younger.launched);
        ASSERT_LE(timing.launched, timing.last_arrival);
      }
      if (i < known) continue;
      EXPECT_THROW(works[i - known].timing(), Error);
    }
  });
}

}  // namespace
}  // namespace paceline
