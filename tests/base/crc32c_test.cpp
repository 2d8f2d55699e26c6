// The checksum against known values, and its two ways against each other.
#include "paceline/base/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "tests/support/world.h"

namespace paceline {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// RFC 3720, B.4, and the check value of the CRC catalogue.
TEST(Crc32c, GivesThePublishedValues) {
  const std::vector<std::byte> zeros(32, std::byte{0}), ones(32, std::byte{0xFF});
  for (const auto crc : {&crc32c, &crc32c_by_table}) {
    EXPECT_EQ(crc(bytes_of("123456789"), 0), 0xE3069283u);
    EXPECT_EQ(crc(zeros, 0), 0x8A9136AAu);
    EXPECT_EQ(crc(ones, 0), 0x62A8AB43u);
    EXPECT_EQ(crc({}, 0), 0u);
  }
}

TEST(Crc32c, BothWaysAgreeAtAllLengthsAndCuts) {
  const std::uint64_t seed = test::seed();
  SCOPED_TRACE(testing::Message() << "PACELINE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(40'000);
  for (auto& byte : data) byte = static_cast<std::byte>(random());
  for (int i = 0; i < 300; ++i) {
    const std::size_t begin = random() % 64, length = i < 100 ? static_cast<std::size_t>(i) : random() % 39'000;
    const auto part = std::span<const std::byte>(data).subspan(begin, length);
    const std::uint32_t whole = crc32c_by_table(part);
    ASSERT_EQ(crc32c(part), whole) << length;
    const std::size_t cut = length == 0 ? 0 : random() % length;
    ASSERT_EQ(crc32c(part.subspan(cut), crc32c(part.first(cut))), whole) << length << " cut at " << cut;
  }
}

TEST(Crc32c, ChangesWithEveryBit) {
  std::vector<std::byte> data(13'000, std::byte{0x5A});
  const std::uint32_t before = crc32c(data);
  for (std::size_t bit = 0; bit < 8 * data.size(); bit += 7) {
    data[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_NE(crc32c(data), before) << bit;
    data[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

}  // namespace
}  // namespace paceline
