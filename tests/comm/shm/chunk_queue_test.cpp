#include "paceline/comm/shm/chunk_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/support/shm_world.h"

namespace paceline {
namespace {

std::vector<std::uint32_t> take_all(ChunkQueue queue) {
  std::vector<std::uint32_t> chunks;
  while (const auto chunk = queue.take_own()) chunks.push_back(*chunk);
  while (const auto chunk = queue.take_any()) chunks.push_back(*chunk);
  return chunks;
}

TEST(ChunkQueue, EachChunkIsGivenOnceWhoeverAsks) {
  constexpr int kRanks = 4;
  const test::ShmWorld world(kRanks);
  for (const std::uint32_t chunks : {0u, 1u, 3u, 4u, 5u, 1000u}) {
    const std::uint64_t number = chunks + 1;
    std::vector<std::atomic<int>> given(chunks);
    std::atomic<int> last = 0;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) ChunkQueue::prepare(world.control(rank), number);
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const ShmGroup group = world.group(rank);
        const ShmView view(group);
        ChunkQueue queue(view, number, chunks);
        for (const std::uint32_t chunk : take_all(queue)) {
          ++given[chunk];
          last += queue.give_back();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& times : given) EXPECT_EQ(times, 1);
    EXPECT_EQ(last, chunks > 0) << "one of them was the last";
    const ShmGroup group = world.group(0);
    const ShmView view(group);
    EXPECT_TRUE(ChunkQueue(view, number, chunks).all_done());
  }
}

// After some hours of small operations a number's lower half comes again, and nothing else has used its counters.
TEST(ChunkQueue, KnowAnOperationFromTheOneOf2To32Before) {
  const test::ShmWorld world(2);
  const ShmGroup group = world.group(0);
  const ShmView view(group);
  for (const std::uint64_t number : {std::uint64_t{5}, (std::uint64_t{1} << 32) + 5, (std::uint64_t{1} << 33) + 5}) {
    for (int rank = 0; rank < 2; ++rank) ChunkQueue::prepare(world.control(rank), number);
    ChunkQueue queue(view, number, 6);
    EXPECT_FALSE(queue.all_done());
    EXPECT_EQ(take_all(queue).size(), 6u);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(queue.give_back(), i == 5);
  }
}

}  // namespace
}  // namespace paceline
