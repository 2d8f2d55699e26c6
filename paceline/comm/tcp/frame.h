#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "paceline/comm/message/transport.h"

namespace paceline {

enum class FrameKind : std::uint8_t {
  Call = 1,     ///< A rank enters an operation; the payload is its eager payload.
  Segment = 2,  ///< Data of the operation that `call` describes.
  Leave = 3,    ///< The sender will enter nothing more. No payload.
};

/// What stands in front of every message on a connection between two ranks, little-endian (docs/wire_format.md).
struct FrameHeader {
  static constexpr std::uint32_t kMagic = 0x46434C50;  // "PLCF"
  static constexpr std::uint8_t kVersion = 1;

  std::uint32_t magic;
  std::uint8_t version;
  FrameKind kind;
  std::uint16_t sender;      // rank
  std::uint64_t generation;  // of the communicator
  std::uint64_t index;       // of this frame among those in this direction, from 0
  Call call;
  std::uint64_t payload_bytes;
  std::uint32_t payload_crc;
  std::uint32_t header_crc;  // of all in front of it
};
static_assert(sizeof(FrameHeader) == 128 && std::is_trivially_copyable_v<FrameHeader>);
static_assert(std::endian::native == std::endian::little, "frames are sent as they lie in memory");

/// One direction of one connection.
struct FrameStream {
  std::uint16_t sender = 0;
  std::uint64_t generation = 0;
  std::uint64_t next_index = 0;
};

/// The header of the stream's next frame.
FrameHeader make_frame(FrameStream& stream, FrameKind kind, const Call& call, std::span<const std::byte> payload);

/// Reads the stream's next header from sizeof(FrameHeader) bytes of unknown origin. Gives what is wrong with it, or
/// nothing. `payload_limit` is the most that its payload may have.
std::optional<std::string> read_frame(FrameStream& stream, std::span<const std::byte, sizeof(FrameHeader)> bytes,
                                      std::size_t payload_limit, FrameHeader& header);

}  // namespace paceline
