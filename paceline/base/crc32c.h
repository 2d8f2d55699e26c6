#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace paceline {

/// CRC-32C (Castagnoli, as iSCSI and ext4 use it) of `data`, going on from `before`, that of what came in front of it.
/// Finds every burst of up to 32 bits. By the processor's instruction where it has one.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before = 0);

/// The same without the instruction.
std::uint32_t crc32c_by_table(std::span<const std::byte> data, std::uint32_t before = 0);

}  // namespace paceline
