#pragma once

#include <algorithm>
#include <cstddef>

#include "paceline/base/dtype.h"

namespace paceline {

/// Part of a buffer, in elements.
struct Slice {
  std::size_t begin, count;
};

/// The part of `count` elements that rank `rank` of `world_size` reduces. Slices are equal but for the last ones, and
/// begin on 64 bytes from the buffer's start so that no two ranks write one cache line.
inline Slice slice_of(std::size_t count, Dtype dtype, int rank, int world_size) {
  const std::size_t line = 64 / size_of(dtype);
  const auto world = static_cast<std::size_t>(world_size);
  const std::size_t each = ((count + world - 1) / world + line - 1) / line * line;
  const std::size_t begin = std::min(count, each * static_cast<std::size_t>(rank));
  return {begin, std::min(each, count - begin)};
}

}  // namespace paceline
