#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "paceline/net/tcp_address.h"

namespace paceline::launch {

/// Who listens at this address, as far as this user may see it: "process 4711 (python3 -m http.server 4000)", or only
/// "a process of user 1000". Empty if nobody does any more.
std::string port_holder(const SocketAddress& address);

/// The user whose socket of this host has the one address as its own and is connected to the other; nothing where
/// /proc/net does not show it.
std::optional<uid_t> socket_owner(const SocketAddress& address, const SocketAddress& peer);
/// The user who listens at this address, as far as /proc/net shows it.
std::optional<uid_t> listener_owner(const SocketAddress& address);
/// Of what may be connected to a job of this user, on a host with other users, without a secret: why it may not; empty
/// if it may.
std::string why_not_ours(std::optional<uid_t> owner);

}  // namespace paceline::launch
