// Buckets without torch.
#include "paceline/sync/reducer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "tests/support/counted_allocations.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

using test::allocations;

// The third step and those after it, with parameters of all kinds: several in a bucket, alone, in pieces, absent.
TEST(Reducer, ASteadyStepAllocatesNothing) {
  for (const bool timed : {false, true}) {
    test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      const std::vector<std::size_t> counts{10, 20, 3000, 5, 100'000, 1, 7};
      std::vector<ParameterInfo> parameters;
      for (const std::size_t count : counts) parameters.push_back({"p", count, Dtype::Float32});
      Reducer reducer(comm, parameters, {.bucket_bytes = 4096});
      const std::vector<float> gradient(100'000, 1.0f);
      std::size_t before = 0;
      for (int step = 0; step < 50; ++step) {
        if (step == 3) before = allocations;
        if (timed) comm.timeline().begin_step(Phase::Forward);
        reducer.begin();
        for (std::size_t i = counts.size(); i-- > 0;) {
          if (i == 2) reducer.mark_ready(i);
          else reducer.store(i, reinterpret_cast<const std::byte*>(gradient.data()));
        }
        ASSERT_TRUE(reducer.absent().empty());
        reducer.finish();
      }
      EXPECT_EQ(allocations - before, 0u) << (timed ? "timed" : "not timed");
    });
  }
}

// More pieces than an engine has room for at a time, and than it knows the times of.
TEST(Reducer, AccountsForEveryPieceOfALargeModel) {
  constexpr std::size_t kPiece = 4096, kPieces = 500;
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    const ParameterInfo large{"large", kPieces * kPiece / sizeof(float), Dtype::Float32};
    Reducer reducer(comm, {large}, {.bucket_bytes = kPiece});
    std::vector<float> gradient(kPieces * kPiece / sizeof(float), static_cast<float>(comm.rank()));
    std::vector<OperationInterval> seen;
    comm.timeline().set_sink([&](const StepEvents& events) { seen = events.operations; });
    for (int step = 0; step < 3; ++step) {
      const Nanoseconds begin = now();
      comm.timeline().begin_step(Phase::Forward);
      reducer.begin();
      reducer.store(0, reinterpret_cast<const std::byte*>(gradient.data()));
      reducer.finish();
      comm.timeline().enter(Phase::Optimizer);
      comm.timeline().pause();
      std::size_t pieces = 0;
      Nanoseconds last = begin;
      for (const OperationInterval& operation : seen) {
        if (operation.label != "bucket 0") continue;
        ++pieces;
        ASSERT_GE(operation.launched, last) << "piece " << pieces << " of step " << step << " has another's times";
        ASSERT_GE(operation.last_arrival, operation.launched);
        ASSERT_GT(operation.working, Nanoseconds(0));
        ASSERT_LE(operation.working, operation.completed - operation.launched);
        last = operation.launched;
      }
      EXPECT_EQ(pieces, kPieces);
      EXPECT_LE(last, now());
    }
    const auto* mean = reinterpret_cast<const float*>(reducer.slot(0).data);
    for (std::size_t i = 0; i < gradient.size(); ++i) ASSERT_EQ(mean[i], 0.5f);
  });
}

/// Of the whole pages of this memory, those that the kernel has given.
std::size_t resident_pages(const std::byte* data, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto address = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  std::vector<unsigned char> present((bytes - page) / page);
  if (::mincore(reinterpret_cast<void*>(address), present.size() * page, present.data()) != 0) {
    throw system_error("mincore", errno);
  }
  return static_cast<std::size_t>(std::count_if(present.begin(), present.end(), [](auto p) { return (p & 1) != 0; }));
}

// A program that was written for several ranks holds no second copy of its gradients when it runs alone.
TEST(Reducer, BucketsOfAWorldOfOneTakeNoMemory) {
  constexpr std::size_t kFloats = std::size_t{16} << 20;
  Reducer reducer(Comm::solo(), {{"first", kFloats, Dtype::Float32}, {"second", kFloats, Dtype::Float32}}, {});
  for (int step = 0; step < 2; ++step) {
    reducer.begin();
    reducer.mark_ready(0);
    reducer.mark_ready(1);
    reducer.finish();
  }
  for (const std::size_t parameter : {0, 1}) {
    EXPECT_LT(resident_pages(reducer.slot(parameter).data, kFloats * sizeof(float)), 10u) << parameter;
  }
}

// What lies alone in a bucket stays there in the order of arrival; a slot that is renewed is another one, and averages.
TEST(Reducer, SlotsOfOwnBucketsStayAndCanBeRenewed) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    const std::vector<std::size_t> counts{3, 5000, 4, 6000};
    std::vector<ParameterInfo> parameters;
    for (const std::size_t count : counts) parameters.push_back({"p", count, Dtype::Float32});
    Reducer reducer(comm, parameters, {.bucket_bytes = 4096});
    const auto fill = [&](std::size_t i) {
      std::fill_n(reinterpret_cast<float*>(reducer.slot(i).data), counts[i], static_cast<float>(comm.rank()));
    };
    std::vector<const std::byte*> before;
    for (std::size_t i = 0; i < counts.size(); ++i) before.push_back(reducer.slot(i).data);
    for (int step = 0; step < 3; ++step) {
      if (step == 2) {
        const Reducer::SlotMemory old = reducer.slot(3);
        reducer.renew(3);
        EXPECT_NE(reducer.slot(3).data, old.data);
        EXPECT_EQ(reinterpret_cast<const float*>(old.data)[0], 0.5f) << "whoever holds it finds it as it was";
      }
      reducer.begin();
      for (const std::size_t i : {std::size_t{1}, std::size_t{3}, std::size_t{0}, std::size_t{2}}) {
        fill(i);
        reducer.mark_ready(i);
      }
      reducer.finish();
      for (std::size_t i = 0; i < counts.size(); ++i) {
        EXPECT_EQ(reinterpret_cast<const float*>(reducer.slot(i).data)[counts[i] - 1], 0.5f) << i << " in " << step;
      }
      if (step > 1) continue;
      for (const std::size_t i : {std::size_t{1}, std::size_t{3}}) {
        EXPECT_TRUE(reducer.alone(i));
        EXPECT_EQ(reducer.slot(i).data, before[i]) << i;
      }
      EXPECT_FALSE(reducer.alone(0));
    }
  });
}

// absent() is only a question: who does not ask it gets the same answer afterwards.
TEST(Reducer, KnowsWhatWasMarkedAbsentOnAllRanks) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Reducer reducer(comm, {{"all", 3, Dtype::Float32}, {"one", 3, Dtype::Float32}, {"none", 3, Dtype::Float32}}, {});
    for (int step = 0; step < 2; ++step) {
      reducer.begin();
      reducer.mark_ready(0);
      if (comm.rank() == 0) reducer.mark_ready(1);
      else reducer.mark_absent(1);
      reducer.mark_absent(2);
      reducer.finish();
      EXPECT_TRUE(reducer.took_part(0));
      EXPECT_TRUE(reducer.took_part(1));
      EXPECT_FALSE(reducer.took_part(2));
    }
  });
}

}  // namespace
}  // namespace paceline
