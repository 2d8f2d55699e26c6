// Shared memory takes address space by need, grows, and stays where it is.
#include "paceline/comm/shm/segment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <vector>

#include "tests/support/shm_world.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::size_t page() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

std::size_t address_space() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * page();
}

TEST(Segment, ManyCommunicatorsTakeLittleAddressSpace) {
  const std::size_t before = address_space();
  std::vector<std::unique_ptr<test::ShmWorld>> worlds;
  for (int i = 0; i < 8; ++i) worlds.push_back(std::make_unique<test::ShmWorld>(4));
  EXPECT_LT(address_space() - before, 4 * 8 * 32 * kMiB);
}

// Whatever is allocated and given back: no two parts overlap, zeros come, and what is there stays, here and for a peer.
TEST(Segment, HandsOutPartsThatStay) {
  const std::uint64_t seed = test::seed();
  SCOPED_TRACE(testing::Message() << "PACELINE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  Segment segment(64 * 1024);
  const Segment peer(UniqueFd(::dup(segment.fd())));
  SegmentHeap heap(segment, 64 * 1024 + 640);
  struct Part {
    std::size_t bytes;
    std::byte* data;
    std::byte mark;
  };
  std::map<std::size_t, Part> parts;
  for (int i = 0; i < 300; ++i) {
    if (parts.size() < 3 || random() % 5 < 3) {
      const std::size_t bytes = random() % 8 == 0 ? random() % (20 * kMiB) : random() % 50'000;
      const std::size_t offset = heap.allocate(bytes);
      std::byte* const data = segment.at(offset);
      ASSERT_EQ(segment.offset_of(data), offset);
      ASSERT_TRUE(segment.has(offset, bytes));
      ASSERT_TRUE(peer.has(offset, bytes));
      ASSERT_TRUE(std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; }));
      const auto mark = static_cast<std::byte>(1 + random() % 255);
      std::fill_n(data, bytes, mark);
      parts[offset] = {bytes, data, mark};
      continue;
    }
    const auto at = std::next(parts.begin(), static_cast<std::ptrdiff_t>(random() % parts.size()));
    const auto& [offset, part] = *at;
    ASSERT_EQ(segment.at(offset), part.data);
    const std::byte* const theirs = peer.at(offset);
    ASSERT_TRUE(std::all_of(theirs, theirs + part.bytes, [&](std::byte b) { return b == part.mark; }));
    heap.free(offset, part.bytes);
    parts.erase(at);
  }
  EXPECT_FALSE(segment.has(0, SIZE_MAX));
  EXPECT_FALSE(segment.has(SIZE_MAX, 1));
  EXPECT_FALSE(segment.offset_of(reinterpret_cast<const std::byte*>(&segment)));
}

// Larger than the first mapping, and in two of them: each a reduction over memory of its own.
TEST(Segment, LargeBuffersAreReduced) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    std::vector<Buffer> buffers;
    for (const std::size_t mib : {1, 15, 40, 9}) buffers.push_back(comm.allocate(mib * kMiB));
    for (const Buffer& buffer : buffers) {
      const auto data = test::floats_of(buffer);
      std::fill(data.begin(), data.end(), 1.0F);
      const std::uint64_t before = comm.bytes_copied();
      comm.all_reduce<float>(data);
      EXPECT_EQ(comm.bytes_copied(), before);
      EXPECT_TRUE(std::all_of(data.begin(), data.end(), [](float x) { return x == 2; }));
    }
  });
}

TEST(Segment, MoreThanTheMachineHasIsRefused) {
  Segment segment(4096);
  SegmentHeap heap(segment, 4096);
  EXPECT_THROW((void)heap.allocate(static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * page() + page()), Error);
  EXPECT_NO_THROW((void)heap.allocate(4096));
}

}  // namespace
}  // namespace paceline
