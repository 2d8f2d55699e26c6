// read_frame(): headers of unknown origin. The input's last four bytes are replaced by the checksum that is due in one
// of two runs, so that what is behind the checksum is reached too.
#include <cmath>

#include "fuzz.h"
#include "paceline/base/crc32c.h"
#include "paceline/comm/tcp/frame.h"

using namespace paceline;

static void read(std::span<const std::byte, sizeof(FrameHeader)> bytes, std::size_t payload_limit) {
  FrameHeader said{};
  std::memcpy(&said, bytes.data(), sizeof said);
  FrameStream stream{.sender = 1, .generation = 7, .next_index = 3};
  const FrameStream before = stream;
  FrameHeader header{};
  const auto wrong = read_frame(stream, bytes, payload_limit, header);
  if (wrong) {
    FUZZ_CHECK(!wrong->empty());
    FUZZ_CHECK(stream.next_index == before.next_index);
    return;
  }
  FUZZ_CHECK(header.payload_bytes <= payload_limit);
  FUZZ_CHECK(header.sender == before.sender && header.generation == before.generation);
  FUZZ_CHECK(header.index == before.next_index && stream.next_index == before.next_index + 1);
  FUZZ_CHECK(header.kind == FrameKind::Call || header.kind == FrameKind::Segment || header.kind == FrameKind::Leave);
  if (header.kind == FrameKind::Call) {
    const Call& call = header.call;
    FUZZ_CHECK(!wrong_with(call) && call.weight >= 0 && call.weight < INFINITY);
    FUZZ_CHECK(std::memchr(call.signature.label, '\0', sizeof call.signature.label) != nullptr);
    FUZZ_CHECK(call.signature.parts != 0 || call.signature.count == 0 || call.reach > 0);
    FUZZ_CHECK(header.payload_bytes == 0 || header.payload_bytes == call.message_bytes);
  }
  FUZZ_CHECK(header.kind != FrameKind::Leave || header.payload_bytes == 0);
  // What comes of it in messages, whatever it holds.
  FUZZ_CHECK(!describe(header.call.signature).empty());
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const auto limit = input.number<std::uint32_t>();
  std::array<std::byte, sizeof(FrameHeader)> bytes{};
  const auto given = input.bytes(bytes.size());
  std::memcpy(bytes.data(), given.data(), given.size());
  read(bytes, limit);
  FrameHeader header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  header.header_crc = crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_crc)));
  std::memcpy(bytes.data(), &header, sizeof header);
  read(bytes, limit);
  return 0;
}
