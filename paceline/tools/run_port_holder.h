#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "paceline/comm/tcp_address.h"

namespace paceline::tools {

/// Who listens at this address, as far as this user may see it: "process 4711 (python3 -m http.server 4000)", or only
/// "a process of user 1000". Empty if nobody does any more.
std::string port_holder(const SocketAddress& address);

/// The user whose connected socket of this host has this address as its own.
std::optional<uid_t> socket_owner(const SocketAddress& address);

}  // namespace paceline::tools
