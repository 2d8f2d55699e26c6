#pragma once

#include <cstdint>
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

/// What happened, finer than the code: the number in messages, "E201", by which docs/errors.md lists them. The first
/// one of each hundred is what an Error made with a code only has.
enum class Fault : std::uint16_t {
  BadArgument = 101,
  PeerDied = 201,        ///< A signal ended its process, or it is gone for an unknown reason.
  PeerLeft = 202,        ///< It ended its communicator while others wait for it.
  PeerSilent = 203,      ///< Its process lives, but does not run.
  ConnectionLost = 204,  ///< It died, or the network between.
  NeverJoined = 205,     ///< It ended before it joined.
  OutOfMemory = 206,     ///< The kernel killed it for want of memory.
  PeerExited = 207,      ///< It exited with a code that is not 0, and did not say why.
  HostLost = 208,        ///< A host's launcher has ended, or nothing is heard from it.
  CallsDiffer = 301,
  ModelsDiffer = 302,
  ReplicasDrifted = 303,  ///< Parameters, moments or learning rates are no longer the same.
  DataEnded = 304,        ///< A rank has no more data, and others do not go on without it.
  WaitsCross = 305,       ///< Each rank waits in an operation that others, which wait elsewhere, do not enter.
  WaitedTooLong = 401,
  NotAllJoined = 402,
  GaveUp = 501,
  NotFinite = 502,  ///< A gradient held NaN or infinity.
  SystemRefused = 601,
  TooFewDescriptors = 602,
  Damaged = 701,
};

ErrorCode code_of(Fault fault);
/// As it stands in messages, e.g. "E201 PEER_LOST".
std::string label_of(Fault fault);

/// Whether an error is what made the job fail, as far as the rank that throws it can know.
enum class Cause : std::uint8_t {
  First,        ///< This rank saw or did what failed.
  Consequence,  ///< Another rank failed: this one was told so, or saw that it is gone.
};

/// The one exception of this library. `what()` is one line: what was being done, with whom, why it failed and what the
/// user can do.
class Error : public std::runtime_error {
 public:
  static constexpr int kNoRank = -1;

  Error(ErrorCode code, const std::string& message, int rank = kNoRank, int peer = kNoRank, Cause cause = Cause::First);
  Error(Fault fault, const std::string& message, int rank = kNoRank, int peer = kNoRank, Cause cause = Cause::First);

  ErrorCode code() const { return code_of(fault_); }
  Fault fault() const { return fault_; }
  std::string label() const { return label_of(fault_); }
  /// The rank that raised the error, or kNoRank outside a Comm.
  int rank() const { return rank_; }
  /// The rank it is about, or kNoRank.
  int peer() const { return peer_; }
  Cause cause() const { return cause_; }
  /// The same failure as `rank` throws it: its own where it raised the error or the error is about it, else a
  /// consequence.
  Error heard_by(int rank) const;
  /// The message without the "[paceline E201 CODE] rank r: " in front.
  const std::string& message() const { return message_; }

 private:
  Fault fault_;
  int rank_;
  int peer_;
  Cause cause_;
  std::string message_;
};

/// A System error that ends in the text of `errno_value`. Call as `throw system_error("cannot open x", errno)`.
Error system_error(const std::string& doing, int errno_value);

}  // namespace paceline
