#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"
#include "paceline/comm/message/schedule.h"
#include "paceline/comm/signature.h"

namespace paceline {

/// What a rank says to another one when it enters an operation.
struct Call {
  Signature signature;
  double weight;
  std::uint64_t reach;          ///< Elements of the whole, or of each part, that its operands hold; where an
                                ///< all_to_all has uneven parts, balance_of() it.
  std::uint64_t message_bytes;  ///< What the sender has for the receiver of this call, now or after it.
};
static_assert(sizeof(Call) == 88 && std::is_trivially_copyable_v<Call>);

/// Of a call of unknown origin: what is wrong with it, as no rank calls so; nothing if it may be a rank's.
std::optional<std::string> wrong_with(const Call& call);

/// What one rank has for another one, and whether it is sent along with the call.
struct EagerPayload {
  std::span<const std::byte> message = {};
  bool eager = false;
};

/// How long a wait lasts without a sign of life, and for how long it does not sleep.
struct WaitPolicy {
  Nanoseconds timeout;
  Nanoseconds spin;
};

/// Moves the messages of a group of ranks. One operation at a time: enter(), then run() as often as it needs.
///
/// Throws Timeout, PeerLost or Corrupt naming the peer, or the group's failure.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// The most bytes that may be sent along with a call.
  virtual std::size_t eager_bytes() const = 0;
  /// The most bytes of a segment; the same on all ranks.
  virtual std::size_t segment_bytes() const = 0;

  /// Tells every other rank that this one enters `call`, each with an eager payload of its own (by rank; this rank's is
  /// not used), and waits until all of them have entered theirs. `call.message_bytes` is filled in.
  virtual void enter(const Call& call, std::span<const EagerPayload> eager_payloads, const WaitPolicy& wait_policy) = 0;
  /// What `peer` said in the last enter(); this rank's own too.
  virtual const Call& call_of(int peer) const = 0;
  /// What came along with it; stays until the next enter() or run().
  virtual std::span<const std::byte> eager_payload_of(int peer) const = 0;

  /// Sends and receives what `schedule` says, in both directions and with all peers at once, until it is finished.
  virtual void run(Schedule& schedule, const WaitPolicy& wait_policy) = 0;

  /// As Engine has it.
  virtual std::vector<LinkInfo> links() const { return {}; }

  /// Makes `cause` the group's failure, unless it has one; everything throws it from then on, on all ranks. From any
  /// thread.
  virtual void fail(const Error& cause) noexcept = 0;
  /// Throws the group's failure, if it has one.
  virtual void check() const = 0;
  /// Tells the others that this rank will enter nothing more.
  virtual void leave() noexcept = 0;
};

}  // namespace paceline
