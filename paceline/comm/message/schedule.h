#pragma once

#include <cstddef>
#include <span>

namespace paceline {

/// What one rank sends and receives in an operation, segment by segment, and what becomes of a segment that has
/// arrived. A plan without sockets or threads: a Transport carries it out. Segments between two ranks stay in order,
/// and both cut them alike.
class Schedule {
 public:
  virtual ~Schedule() = default;
  /// The next segment for `peer`; empty while there is none. Stays as it is until sent().
  virtual std::span<const std::byte> next_outgoing(int peer) = 0;
  virtual void sent(int peer) = 0;
  /// Where the next segment from `peer` goes; empty while none may come. Filled, and seen to be whole, at arrived().
  virtual std::span<std::byte> next_incoming(int peer) = 0;
  virtual void arrived(int peer) = 0;
  /// True once all segments were sent and have arrived.
  virtual bool finished() const = 0;
};

}  // namespace paceline
