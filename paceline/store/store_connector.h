#pragma once

#include <functional>
#include <optional>
#include <string>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"
#include "paceline/net/secret.h"

namespace paceline {

/// Makes a new connection to one store, or throws by the deadline why there is none. From any thread.
using StoreConnector = std::function<UniqueFd(Deadline)>;

/// The way to the store at "unix:@NAME" or "tcp:HOST:PORT". Connects to nothing yet. Throws InvalidArgument for what is
/// no address, a host that does not resolve, and a missing secret.
StoreConnector store_connector(const std::string& address, const std::optional<Secret>& secret);

/// What a client throws when the store has not answered for as long as it should.
Error store_silent(const std::string& address);

}  // namespace paceline
