#include "paceline/comm/tcp/frame.h"

#include <fmt/format.h>

#include <cstring>

#include "paceline/base/crc32c.h"

namespace paceline {

static std::uint32_t header_crc(const FrameHeader& header) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_crc)));
}

FrameHeader make_frame(FrameStream& stream, FrameKind kind, const Call& call, std::span<const std::byte> payload) {
  FrameHeader header{.magic = FrameHeader::kMagic,
                     .version = FrameHeader::kVersion,
                     .kind = kind,
                     .sender = stream.sender,
                     .generation = stream.generation,
                     .index = stream.next_index++,
                     .call = call,
                     .payload_bytes = payload.size(),
                     .payload_crc = crc32c(payload),
                     .header_crc = 0};
  header.header_crc = header_crc(header);
  return header;
}

// What a checksum says nothing of. The call that a segment repeats is compared with what was called (TcpLink).
static std::optional<std::string> wrong_with_call(const FrameHeader& header) {
  if (header.kind == FrameKind::Leave && header.payload_bytes != 0) {
    return fmt::format("a goodbye with {} bytes", header.payload_bytes);
  }
  if (header.kind != FrameKind::Call) return std::nullopt;
  auto wrong = wrong_with(header.call);
  if (!wrong && header.payload_bytes != 0 && header.payload_bytes != header.call.message_bytes) {
    wrong = fmt::format("{} bytes of a message of {}", header.payload_bytes, header.call.message_bytes);
  }
  if (wrong) *wrong = fmt::format("a call has {}, as none of this build does", *wrong);
  return wrong;
}

std::optional<std::string> read_frame(FrameStream& stream, std::span<const std::byte, sizeof(FrameHeader)> bytes,
                                      std::size_t payload_limit, FrameHeader& header) {
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.header_crc != header_crc(header)) return "a header's checksum is wrong";
  if (header.magic != FrameHeader::kMagic || header.version != FrameHeader::kVersion) {
    return fmt::format("a frame of version {} came where version {} was due", header.version, FrameHeader::kVersion);
  }
  if (header.kind != FrameKind::Call && header.kind != FrameKind::Segment && header.kind != FrameKind::Leave) {
    return fmt::format("a frame of unknown kind {}", static_cast<int>(header.kind));
  }
  if (header.sender != stream.sender || header.generation != stream.generation) {
    return fmt::format("a frame of rank {} in another communicator", header.sender);
  }
  if (header.index != stream.next_index) {
    return fmt::format("frame {} came where frame {} was due", header.index, stream.next_index);
  }
  if (header.payload_bytes > payload_limit) {
    return fmt::format("a frame of {} bytes came where at most {} were due", header.payload_bytes, payload_limit);
  }
  if (auto wrong = wrong_with_call(header)) return wrong;
  ++stream.next_index;
  return std::nullopt;
}

}  // namespace paceline
