#include "paceline/base/error.h"

#include <fmt/format.h>

#include <system_error>

namespace paceline {
namespace {

std::string decorate(ErrorCode code, const std::string& message, int rank) {
  if (rank == Error::kNoRank) return fmt::format("[paceline {}] {}", to_string(code), message);
  return fmt::format("[paceline {}] rank {}: {}", to_string(code), rank, message);
}

}  // namespace

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument: return "INVALID_ARGUMENT";
    case ErrorCode::Mismatch: return "MISMATCH";
    case ErrorCode::Timeout: return "TIMEOUT";
    case ErrorCode::PeerLost: return "PEER_LOST";
    case ErrorCode::Aborted: return "ABORTED";
    case ErrorCode::System: return "SYSTEM";
    case ErrorCode::Corrupt: return "CORRUPT";
  }
  return "UNKNOWN";
}

Error::Error(ErrorCode code, const std::string& message, int rank, int peer)
    : std::runtime_error(decorate(code, message, rank)), code_(code), rank_(rank), peer_(peer), message_(message) {}

Error system_error(const std::string& doing, int errno_value) {
  return Error(ErrorCode::System, fmt::format("{}: {}", doing, std::generic_category().message(errno_value)));
}

}  // namespace paceline
