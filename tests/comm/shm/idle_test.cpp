// What it costs to wait.
#include <gtest/gtest.h>
#include <time.h>

#include <thread>

#include "paceline/base/cpu.h"
#include "tests/support/shm_world.h"

namespace paceline {
namespace {

Nanoseconds thread_cpu_time() {
  timespec spent{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return std::chrono::seconds(spent.tv_sec) + Nanoseconds(spent.tv_nsec);
}

/// All ranks but the first wait for it, until they give up after 2 seconds.
void expect_cheap_wait(int world_size, Algorithm algorithm, int waiting_from) {
  constexpr auto kWait = std::chrono::seconds(2);
  const test::ShmWorld world(world_size, kWait);
  std::vector<Buffer> buffers;
  for (int rank = 0; rank < world_size; ++rank) buffers.push_back(world.engine(rank).allocate(400'000));
  for (int rank = 0; rank < waiting_from; ++rank) {
    test::start(world.engine(rank), test::sum_of(buffers[static_cast<std::size_t>(rank)].data(), 100'000, algorithm));
  }
  std::vector<std::thread> threads;
  for (int rank = 1; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const Operation sum = test::sum_of(buffers[static_cast<std::size_t>(rank)].data(), 100'000, algorithm);
      ShmEngine& engine = world.engine(rank);
      const std::uint64_t number = rank < waiting_from ? 1 : test::start(engine, sum);
      const Nanoseconds began = now(), before = thread_cpu_time();
      EXPECT_THROW(engine.wait(number), Error);
      const Nanoseconds waited = now() - began, spent = thread_cpu_time() - before;
      EXPECT_GE(waited, kWait / 2);
      EXPECT_LT(seconds(spent), 0.05 * seconds(waited)) << "rank " << rank << " of " << world_size;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Idle, ARankThatWaitsForAnArrivalUsesLittleOfAProcessor) { expect_cheap_wait(2, Algorithm::Slices, 0); }

TEST(Idle, ARankThatWaitsForAnothersShareUsesLittleOfAProcessor) { expect_cheap_wait(2, Algorithm::Slices, 1); }

TEST(Idle, SoDoManyMoreRanksThanProcessors) { expect_cheap_wait(2 * usable_cpus() + 4, Algorithm::ChunkQueue, 0); }

}  // namespace
}  // namespace paceline
