#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace paceline {

/// 64 bits of XXH3: fast, not cryptographic, the same on all machines.
std::uint64_t hash_of(std::span<const std::byte> data, std::uint64_t seed = 0);
std::uint64_t hash_of(std::string_view text, std::uint64_t seed = 0);

}  // namespace paceline
