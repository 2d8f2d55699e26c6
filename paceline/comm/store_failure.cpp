#include "paceline/comm/store_failure.h"

#include <fmt/format.h>

#include <charconv>

namespace paceline {

Fault StoreFailure::fault() const {
  int number = 0;
  const bool numbered = code.starts_with('E') &&
                        std::from_chars(code.data() + 1, code.data() + code.size(), number).ec == std::errc() &&
                        number > 100 && number < 800;
  return numbered ? static_cast<Fault>(number) : Fault::PeerDied;
}

Error to_error(const StoreFailure& first) {
  const ErrorCode code = first.is(ErrorCode::PeerLost) ? ErrorCode::PeerLost : ErrorCode::Aborted;
  return Error(code, fmt::format("{} (the job's first failure: {} of rank {})", first.message, first.code, first.rank),
               Error::kNoRank, first.rank);
}

Error store_timeout(std::string_view key, Nanoseconds waited) {
  return Error(ErrorCode::Timeout,
               fmt::format("waited {:.1f} s for \"{}\" in the store; the rank that sets it is late, stuck or was never "
                           "started",
                           seconds(waited), key));
}

}  // namespace paceline
