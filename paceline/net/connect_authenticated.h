#pragma once

#include <cstdint>
#include <string>

#include "paceline/base/clock.h"
#include "paceline/base/unique_fd.h"
#include "paceline/net/handshake.h"
#include "paceline/net/tcp_address.h"

namespace paceline {

/// What a caller that is no rank of a communicator wants: the generation of its Introduction. A communicator's is
/// random, and that one of them is as small as these will not happen.
enum class Purpose : std::uint64_t { Store = 1, Launcher = 2 };
Introduction introduction_for(Purpose purpose);

enum class ConnectOutcome {
  Met,       ///< Both know the secret.
  NotThere,  ///< Nobody answers, or somebody who speaks something else.
  Refused,   ///< The port is closed: nobody listens.
  HungUp,    ///< It speaks our protocol and ended the connection: another secret, or it has no room.
};

/// Connects, and proves that this side knows the secret. On Met the connection is in `socket`, else `why` says why not.
ConnectOutcome connect_authenticated(const SocketAddress& address, const Secret& secret,
                                     const Introduction& introduction, Deadline deadline, UniqueFd& socket,
                                     std::string& why);

}  // namespace paceline
