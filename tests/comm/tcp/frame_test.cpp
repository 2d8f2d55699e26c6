// The frame that messages travel in: nothing but the one that is due is taken for good.
#include "paceline/comm/tcp/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "tests/support/world.h"

namespace paceline {
namespace {

using Bytes = std::array<std::byte, sizeof(FrameHeader)>;

Bytes bytes_of(const FrameHeader& header) {
  Bytes bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

Call some_call() {
  Call call{};
  sign({.kind = Collective::AllReduce, .dtype = Dtype::Float32, .count = 25, .label = "bucket 1"}, 42, call.signature);
  call.weight = 1;
  call.reach = 25;
  call.message_bytes = 100;
  return call;
}

class Frame : public testing::Test {
 protected:
  std::optional<std::string> read(const Bytes& bytes, std::size_t limit = 1 << 20) {
    FrameStream copy = receiving;
    FrameHeader header{};
    return read_frame(copy, bytes, limit, header);
  }

  const std::uint64_t seed = test::seed();
  testing::ScopedTrace trace{__FILE__, __LINE__, "PACELINE_TEST_SEED=" + std::to_string(seed)};
  std::mt19937_64 random{seed};
  FrameStream sending{.sender = 3, .generation = 77, .next_index = 5}, receiving = sending;
  std::vector<std::byte> payload{100, std::byte{7}};
};

TEST_F(Frame, IsReadAsItWasMade) {
  for (int i = 0; i < 3; ++i) {
    const FrameHeader made = make_frame(sending, FrameKind::Segment, some_call(), payload);
    FrameHeader header{};
    ASSERT_FALSE(read_frame(receiving, bytes_of(made), payload.size(), header));
    EXPECT_EQ(std::memcmp(&header, &made, sizeof header), 0);
    EXPECT_EQ(header.payload_bytes, payload.size());
  }
}

TEST_F(Frame, IsRefusedWithAnyOneOrTwoBitsFlipped) {
  const Bytes good = bytes_of(make_frame(sending, FrameKind::Call, some_call(), payload));
  ASSERT_FALSE(read(good));
  const auto flip = [](Bytes& bytes, std::size_t bit) { bytes[bit / 8] ^= std::byte{1} << (bit % 8); };
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bad = good;
    flip(bad, bit);
    EXPECT_TRUE(read(bad)) << "bit " << bit;
    const std::size_t other = random() % (8 * good.size());
    if (other == bit) continue;
    flip(bad, other);
    EXPECT_TRUE(read(bad)) << "bits " << bit << " and " << other;
  }
}

TEST_F(Frame, IsRefusedWhenItIsNotTheOneThatIsDue) {
  const auto refused = [&](FrameStream of, FrameKind kind, const char* part) {
    const auto wrong = read(bytes_of(make_frame(of, kind, some_call(), payload)), payload.size());
    ASSERT_TRUE(wrong) << part;
    EXPECT_NE(wrong->find(part), std::string::npos) << *wrong;
  };
  refused({.sender = 2, .generation = 77, .next_index = 5}, FrameKind::Call, "rank 2 in another communicator");
  refused({.sender = 3, .generation = 78, .next_index = 5}, FrameKind::Call, "another communicator");
  refused({.sender = 3, .generation = 77, .next_index = 4}, FrameKind::Call, "frame 4 came where frame 5 was due");
  refused({.sender = 3, .generation = 77, .next_index = 6}, FrameKind::Call, "frame 6 came");
  refused(sending, static_cast<FrameKind>(9), "unknown kind 9");
  payload.resize(101);
  const auto wrong = read(bytes_of(make_frame(sending, FrameKind::Segment, some_call(), payload)), 100);
  ASSERT_TRUE(wrong);
  EXPECT_EQ(*wrong, "a frame of 101 bytes came where at most 100 were due");
}

TEST_F(Frame, IsNeverMadeOfRandomBytes) {
  for (int i = 0; i < 20'000; ++i) {
    Bytes junk;
    for (std::size_t at = 0; at < junk.size(); at += 8) {
      const std::uint64_t word = random();
      std::memcpy(junk.data() + at, &word, sizeof word);
    }
    EXPECT_TRUE(read(junk));
  }
}

}  // namespace
}  // namespace paceline
