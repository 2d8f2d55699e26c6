#pragma once

#include <string>
#include <string_view>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"
#include "paceline/store/protocol.h"

namespace paceline {

/// What Store::fail() was told.
struct StoreFailure {
  int rank;
  std::string code;  ///< An error's label, e.g. "E401 TIMEOUT".
  std::string message;
  Cause cause = Cause::First;

  /// What the label's number says; PeerDied if it has none.
  Fault fault() const;
  bool is(ErrorCode what) const { return code.ends_with(to_string(what)); }
};

/// As the store and its clients send it to each other.
StoreMessage to_message(StoreOp op, const StoreFailure& failure);
StoreFailure failure_in(const StoreMessage& message);

/// What a rank throws that hears of the job's first failure: PeerLost if a process was lost, else Aborted.
Error to_error(const StoreFailure& first);

/// What get() throws at its deadline.
Error store_timeout(std::string_view key, Nanoseconds waited);

}  // namespace paceline
