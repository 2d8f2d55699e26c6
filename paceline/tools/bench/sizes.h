#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::tools {

/// Sizes from `first` to `last`, both in bytes: each `factor` times the one before, or `step` bytes more if that is
/// given.
struct SizeRange {
  std::size_t first = 8;
  std::size_t last = std::size_t{128} << 20;
  double factor = 4;
  std::optional<std::size_t> step;
};

/// Bytes from "8", "4K", "128M", "1G" or "64KiB": K, M and G are binary. `option` stands in the error.
/// Throws InvalidArgument.
std::size_t parse_size(std::string_view option, std::string_view text);

/// "8", "4K", "128M": what parse_size() reads, as short as it goes.
std::string size_text(std::size_t bytes);

/// The sizes of `range`, ascending, each a multiple of `unit`: `first` must be one, later ones are rounded down.
/// Throws InvalidArgument for a range that is reversed, does not grow, or has more than 1000 sizes.
std::vector<std::size_t> sizes_in(const SizeRange& range, std::size_t unit);

}  // namespace paceline::tools
