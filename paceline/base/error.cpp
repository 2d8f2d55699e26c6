#include "paceline/base/error.h"

#include <fmt/format.h>

#include <system_error>

namespace paceline {
namespace {

std::string decorate(Fault fault, const std::string& message, int rank) {
  if (rank == Error::kNoRank) return fmt::format("[paceline {}] {}", label_of(fault), message);
  return fmt::format("[paceline {}] rank {}: {}", label_of(fault), rank, message);
}

Fault first_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument: return Fault::BadArgument;
    case ErrorCode::PeerLost: return Fault::PeerDied;
    case ErrorCode::Mismatch: return Fault::CallsDiffer;
    case ErrorCode::Timeout: return Fault::WaitedTooLong;
    case ErrorCode::Aborted: return Fault::GaveUp;
    case ErrorCode::System: return Fault::SystemRefused;
    case ErrorCode::Corrupt: return Fault::Damaged;
  }
  return Fault::SystemRefused;
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

ErrorCode code_of(Fault fault) {
  switch (static_cast<int>(fault) / 100) {
    case 1: return ErrorCode::InvalidArgument;
    case 2: return ErrorCode::PeerLost;
    case 3: return ErrorCode::Mismatch;
    case 4: return ErrorCode::Timeout;
    case 5: return ErrorCode::Aborted;
    case 7: return ErrorCode::Corrupt;
    default: return ErrorCode::System;
  }
}

std::string label_of(Fault fault) { return fmt::format("E{} {}", static_cast<int>(fault), to_string(code_of(fault))); }

Error::Error(ErrorCode code, const std::string& message, int rank, int peer, Cause cause)
    : Error(first_of(code), message, rank, peer, cause) {}

Error::Error(Fault fault, const std::string& message, int rank, int peer, Cause cause)
    : std::runtime_error(decorate(fault, message, rank)),
      fault_(fault),
      rank_(rank),
      peer_(peer),
      cause_(cause),
      message_(message) {}

Error Error::heard_by(int rank) const {
  const bool own = cause_ == Cause::First && (rank == rank_ || rank == peer_);
  return Error(fault_, message_, rank, peer_ != rank ? peer_ : rank_, own ? Cause::First : Cause::Consequence);
}

Error system_error(const std::string& doing, int errno_value) {
  return Error(ErrorCode::System, fmt::format("{}: {}", doing, std::generic_category().message(errno_value)));
}

}  // namespace paceline
