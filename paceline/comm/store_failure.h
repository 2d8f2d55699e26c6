#pragma once

#include <string>
#include <string_view>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"

namespace paceline {

/// What Store::fail() was told.
struct StoreFailure {
  int rank;
  std::string code;  ///< An error's name, e.g. "TIMEOUT".
  std::string message;

  /// The rank only says that another one failed: it is not the cause.
  bool secondary() const { return code == "PEER_LOST" || code == "ABORTED"; }
};

/// What a rank throws that hears of the job's first failure: PeerLost if a process was lost, else Aborted.
Error to_error(const StoreFailure& first);

/// What get() throws at its deadline.
Error store_timeout(std::string_view key, Nanoseconds waited);

}  // namespace paceline
