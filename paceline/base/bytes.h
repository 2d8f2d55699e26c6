#pragma once

#include <cstddef>
#include <cstring>

namespace paceline {

/// memcpy that takes null for nothing, and does nothing where the data are already there.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace paceline
