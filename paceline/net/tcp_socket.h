#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "paceline/base/clock.h"
#include "paceline/base/unique_fd.h"
#include "paceline/net/port_range.h"
#include "paceline/net/tcp_address.h"

namespace paceline {

// Sockets while ranks meet. All are non-blocking.

/// Listens on this address, on the first free port of the range; on any where both are 0. Throws System or
/// InvalidArgument.
UniqueFd listen_on(const SocketAddress& address, PortRange ports, int backlog);
SocketAddress local_address(int socket);
/// Throws System where it is not connected.
SocketAddress peer_address(int socket);

/// A connection, or none and why, also in errno.
UniqueFd connect_to(const SocketAddress& address, Deadline deadline, std::string& why);

/// False if the connection or the time ended first.
bool send_all(int socket, std::span<const std::byte> data, Deadline deadline);
bool receive_all(int socket, std::span<std::byte> data, Deadline deadline);

/// For collectives: no delay of small messages, and an end to the connection when the peer's host has not answered for
/// as long as `silence`. On loopback there is no congestion to control.
void tune(int socket, Nanoseconds silence);

}  // namespace paceline
