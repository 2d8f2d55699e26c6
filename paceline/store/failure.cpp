#include "paceline/store/failure.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

namespace paceline {

Fault StoreFailure::fault() const {
  int number = 0;
  const bool numbered = code.starts_with('E') &&
                        std::from_chars(code.data() + 1, code.data() + code.size(), number).ec == std::errc() &&
                        number > 100 && number < 800;
  return numbered ? static_cast<Fault>(number) : Fault::PeerDied;
}

// The rank is the lower half of the number, the cause the upper.
StoreMessage to_message(StoreOp op, const StoreFailure& failure) {
  const auto cause = static_cast<std::int64_t>(failure.cause);
  return {.op = op,
          .number = cause << 32 | static_cast<std::uint32_t>(failure.rank),
          .key = failure.code,
          .value = failure.message};
}

StoreFailure failure_in(const StoreMessage& message) {
  const bool first = message.number >> 32 == static_cast<std::int64_t>(Cause::First);
  return {static_cast<std::int32_t>(message.number & UINT32_MAX), message.key, message.value,
          first ? Cause::First : Cause::Consequence};
}

Error to_error(const StoreFailure& first) {
  const ErrorCode code = first.is(ErrorCode::PeerLost) ? ErrorCode::PeerLost : ErrorCode::Aborted;
  const std::string whose = first.rank == Error::kNoRank ? "" : fmt::format(" of rank {}", first.rank);
  return Error(code, fmt::format("{} (the job's first failure: {}{})", first.message, first.code, whose),
               Error::kNoRank, first.rank, Cause::Consequence);
}

Error store_timeout(std::string_view key, Nanoseconds waited) {
  return Error(ErrorCode::Timeout,
               fmt::format("waited {:.1f} s for \"{}\" in the store; the rank that sets it is late, stuck or was never "
                           "started",
                           seconds(waited), key));
}

}  // namespace paceline
