#pragma once

#include <stdexcept>
#include <string>

namespace paceline {

/// Why a call failed. After anything but InvalidArgument the Comm it came from is dead: every later call on it throws
/// the same, first failure again.
enum class ErrorCode {
  InvalidArgument,  ///< The caller's arguments are wrong; nothing was sent and the Comm lives on.
  Mismatch,         ///< Ranks disagree on an operation, a type, a size or the model. No data was combined.
  Timeout,          ///< Nothing was heard from a peer for as long as the deadline allows.
  PeerLost,         ///< A peer's process ended or its connection broke.
  Aborted,          ///< A rank gave up and said why.
  System,           ///< The operating system refused something; the message has its reason.
  Corrupt,          ///< Bytes that were read are not what was written.
};

/// The code's name as it stands in messages, e.g. "PEER_LOST".
const char* to_string(ErrorCode code);

/// The one exception of this library. `what()` is one line: what was being done, with whom, why it failed and what the
/// user can do.
class Error : public std::runtime_error {
 public:
  static constexpr int kNoRank = -1;

  Error(ErrorCode code, const std::string& message, int rank = kNoRank, int peer = kNoRank);

  ErrorCode code() const { return code_; }
  /// The rank that raised the error, or kNoRank outside a Comm.
  int rank() const { return rank_; }
  /// The rank it is about, or kNoRank.
  int peer() const { return peer_; }
  /// The message without the "[paceline CODE] rank r: " in front.
  const std::string& message() const { return message_; }

 private:
  ErrorCode code_;
  int rank_;
  int peer_;
  std::string message_;
};

/// A System error that ends in the text of `errno_value`. Call as `throw system_error("cannot open x", errno)`.
Error system_error(const std::string& doing, int errno_value);

}  // namespace paceline
