#pragma once

#include <cstdint>
#include <string>

namespace paceline {

/// Ports to listen on: the first free one of them; any where both are 0.
struct PortRange {
  std::uint16_t first = 0, last = 0;

  static PortRange only(std::uint16_t port) { return {port, port}; }
  /// From "4000-4100" or "4000". Throws InvalidArgument.
  static PortRange from_text(const std::string& text);
};

}  // namespace paceline
