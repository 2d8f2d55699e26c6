#pragma once

#include <cstddef>
#include <span>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"

namespace paceline {

struct Outgoing {
  int peer;
  std::span<const std::byte> data;
};
struct Incoming {
  int peer;
  std::span<std::byte> data;
};

/// Moves messages between the ranks of a group. Messages from one rank to another arrive in order.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// Sends and receives at once, at most one message per peer each way; blocks until all are done. Empty ones are sent
  /// too. Throws Timeout or PeerLost naming the peer, Corrupt if a message is not as long as expected, or the group's
  /// failure.
  virtual void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming, Deadline deadline) = 0;
  /// Makes `cause` the group's failure, unless it has one; every exchange() throws it from then on. From any thread.
  virtual void fail(const Error& cause) noexcept = 0;
  /// Throws the group's failure, if it has one.
  virtual void check() const = 0;
  /// Tells the others that this rank will exchange nothing more.
  virtual void leave() noexcept = 0;
};

}  // namespace paceline
