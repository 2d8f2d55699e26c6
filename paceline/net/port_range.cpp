#include "paceline/net/port_range.h"

#include <fmt/format.h>

#include <charconv>

#include "paceline/base/error.h"

namespace paceline {

PortRange PortRange::from_text(const std::string& text) {
  PortRange ports;
  const char* const end = text.data() + text.size();
  auto result = std::from_chars(text.data(), end, ports.first);
  ports.last = ports.first;
  if (result.ec == std::errc() && result.ptr != end && *result.ptr == '-') {
    result = std::from_chars(result.ptr + 1, end, ports.last);
  }
  if (result.ec == std::errc() && result.ptr == end && ports.first > 0 && ports.first <= ports.last) return ports;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("\"{}\" is no port or range of ports, as in PACELINE_PORTS=4000-4100", text));
}

}  // namespace paceline
