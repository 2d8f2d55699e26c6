#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/net/tcp_address.h"

namespace paceline {

/// The addresses that a name stands for, IPv4 and IPv6, in the system's order of preference; a numeric address stands
/// for itself. Asks the system, which may ask a server: blocks. Throws InvalidArgument, naming the host and the reason.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port);

/// A host and a port as users write them.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
/// From "host:4000", "10.0.0.1:4000", "[fd00::1]:4000". Throws InvalidArgument for anything else.
HostPort parse_host_port(const std::string& text);

}  // namespace paceline
