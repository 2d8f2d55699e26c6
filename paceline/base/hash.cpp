#include "paceline/base/hash.h"

#include <xxhash.h>

namespace paceline {

std::uint64_t hash_of(std::span<const std::byte> data, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data.data(), data.size(), seed);
}

std::uint64_t hash_of(std::string_view text, std::uint64_t seed) {
  return hash_of(std::as_bytes(std::span(text.data(), text.size())), seed);
}

}  // namespace paceline
